//! The control plane: everything around the devices' threads, none of it in their way. The only place with tokio.
pub mod activation;
pub mod client;
pub mod device;
pub mod protocol;
pub mod ready;
pub mod report;
pub mod server;
pub mod supervisor;
