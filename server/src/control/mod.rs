//! The control plane: everything around the devices' threads, none of it in their way. The only place with tokio.
pub mod activation;
pub mod client;
pub mod device;
pub mod http;
pub mod metrics;
pub mod operator;
pub mod protocol;
pub mod ready;
pub mod report;
pub mod resident;
pub mod server;
pub mod supervisor;
pub mod timeline;
