//! Options of the metrics endpoint.
use clap::Args;

use crate::control::metrics::{Address, Endpoint};

/// Where to serve metrics.
#[derive(Args, Clone, Debug)]
pub struct MetricsArgs {
    /// Serve Prometheus metrics by HTTP, path /metrics: a loopback address with a port, or unix:PATH
    #[arg(long, value_name = "ADDR")]
    metrics: Option<Address>,
}

impl MetricsArgs {
    /// Binds the address, which must happen before the process gives up its rights.
    ///
    /// # Errors
    /// A sentence that names option, address and reason.
    pub fn bind(&self) -> Result<Option<Endpoint>, String> {
        self.metrics
            .as_ref()
            .map(|address| Endpoint::bind(address).map_err(|error| format!("--metrics {error}")))
            .transpose()
    }
}
