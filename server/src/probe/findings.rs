//! What a probe found, as data and as text.
use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Everything found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    /// `trn2`.
    pub product: String,
    /// `V3`.
    pub generation: String,
    /// PCI vendor, device.
    pub pci_id: [u16; 2],
    /// PCI revision.
    pub revision: u8,
    /// What the revision means.
    pub platform: String,
    /// Routing id.
    pub routing_id: u32,
    /// Number of the driver's device node.
    pub node: u8,
    /// Serial number.
    pub serial: u64,
    /// Firmware API version.
    pub firmware_api: u32,
    /// Sizes of BAR 0 to 5.
    pub bars: [u64; 6],
    /// BAR that the registers were reached through.
    pub register_bar: u32,
    /// Time from a reset request to its acknowledgement, microseconds.
    pub reset_us: u64,
    /// `e128.q0`, ...: queues that copied with the right contents.
    pub queues: Vec<String>,
    /// HBM stacks that took a copy and gave it back.
    pub stacks: usize,
    /// Copies checked, in order.
    pub copies: Vec<Copy>,
    /// Bandwidth of a large copy.
    pub throughput: Vec<Throughput>,
    /// Doorbell to marker.
    pub latency: Latency,
}

/// A copy whose contents were compared.
#[derive(Clone, Debug, Serialize)]
pub struct Copy {
    /// What it was for.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
}

/// One direction.
#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    /// `host to device`, ...
    pub direction: &'static str,
    /// Bytes copied.
    pub bytes: u64,
    /// Time, microseconds.
    pub us: u64,
}

/// Time from the doorbells to the marker, of copies of 4 bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Copies timed.
    pub samples: usize,
    /// 10th percentile, nanoseconds.
    pub p10_ns: u64,
    /// Median, nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile, nanoseconds.
    pub p99_ns: u64,
}

impl Latency {
    /// Percentiles of some durations.
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| {
            let index = samples.len().saturating_sub(1) * percent / 100;
            samples.get(index).map_or(0, |sample| {
                u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX)
            })
        };
        Self {
            samples: samples.len(),
            p10_ns: at(10),
            p50_ns: at(50),
            p99_ns: at(99),
        }
    }
}

/// Megabytes per second.
fn rate(bytes: u64, us: u64) -> u64 {
    // Bytes per microsecond is megabytes per second.
    bytes / us.max(1)
}

/// Nanoseconds as microseconds with one decimal.
fn micros(ns: u64) -> String {
    format!("{}.{} us", ns / 1000, ns % 1000 / 100)
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [vendor, device] = self.pci_id;
        writeln!(
            f,
            "device      {} ({}), {vendor:04x}:{device:04x} revision {} (platform {})",
            self.product, self.generation, self.revision, self.platform
        )?;
        writeln!(
            f,
            "identity    routing id {} (/dev/neuron{}), serial {:#x}, firmware API {}",
            self.routing_id, self.node, self.serial, self.firmware_api
        )?;
        write!(f, "BARs       ")?;
        for (index, size) in self.bars.iter().enumerate().filter(|(_, size)| **size > 0) {
            write!(f, " BAR{index} {}", crate::observe::render::bytes(*size))?;
        }
        writeln!(f, "; registers through BAR{}", self.register_bar)?;
        writeln!(f, "reset       acknowledged after {} us", self.reset_us)?;
        writeln!(
            f,
            "queues      {} copy: {}",
            self.queues.len(),
            self.queues.join(" ")
        )?;
        writeln!(
            f,
            "memory      {} HBM stacks hold what was copied to them",
            self.stacks
        )?;
        let total: u64 = self.copies.iter().map(|copy| copy.bytes).sum();
        writeln!(
            f,
            "copies      {}, {total} bytes, contents equal",
            self.copies.len()
        )?;
        for Throughput {
            direction,
            bytes,
            us,
        } in &self.throughput
        {
            writeln!(
                f,
                "bandwidth   {direction} {} MB/s ({bytes} bytes)",
                rate(*bytes, *us)
            )?;
        }
        let Latency {
            samples,
            p10_ns,
            p50_ns,
            p99_ns,
        } = self.latency;
        writeln!(
            f,
            "latency     4 bytes, doorbell to marker: p10 {} p50 {} p99 {} ({samples} copies; this client's doorbells \
             wait for a reply, QEMU's do not)",
            micros(p10_ns),
            micros(p50_ns),
            micros(p99_ns)
        )?;
        writeln!(f, "PASS")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let latency = Latency::of((1..=100).rev().map(Duration::from_nanos).collect());
        assert_eq!(
            (latency.p10_ns, latency.p50_ns, latency.p99_ns),
            (10, 50, 99)
        );
        assert_eq!(Latency::of(vec![]).samples, 0);
    }
}
