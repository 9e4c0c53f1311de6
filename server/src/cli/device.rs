//! Options that say what a device is. `serve` and `qemu-args` share them, so that the two always agree.
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, value_parser};
use neuron_protocol::generation::{Platform, Product};

use super::size;
use crate::memory::HbmGeometry;

/// Highest routing id (contract §4: the driver refuses 64 and up).
const MAX_ROUTING_ID: u8 = 63;

/// What to be.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    #[command(flatten)]
    pub place: SocketArgs,

    /// Number of devices, all of the same product (the driver takes one architecture per guest)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u8).range(1..=16))]
    pub devices: u8,

    /// Product, as its PCI device id tells the driver
    #[arg(long, default_value = "trn2", value_parser = products())]
    pub product: Product,

    /// Platform, as the PCI revision id tells the driver: qemu (255) gives the driver patience and costs 2 s per reset,
    /// silicon (0) has budgets of 40 ms (trn1, inf2) or 80 ms (trn2, trn3) per small copy, emulator is 240
    #[arg(long, default_value = "qemu", value_parser = platforms())]
    pub platform: Platform,

    /// Routing id of the first device, 0 to 63; further devices count up. Without it device N becomes /dev/neuronN
    #[arg(long, value_name = "ID", value_parser = value_parser!(u8).range(0..=i64::from(MAX_ROUTING_ID)))]
    pub routing_id: Option<u8>,

    /// Size of device memory (BAR4: all stacks together), a power of two from 256M to 256G [default: 64G]. Only on trn2
    /// and trn3 with --platform qemu: elsewhere the driver assumes the stacks of the real part. It is sparse either way
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub hbm: Option<u64>,
}

fn products() -> impl TypedValueParser<Value = Product> {
    PossibleValuesParser::new(Product::ALL.map(Product::name))
        .try_map(|name| name.parse::<Product>())
}

fn platforms() -> impl TypedValueParser<Value = Platform> {
    PossibleValuesParser::new(Platform::ALL.map(Platform::name))
        .try_map(|name| name.parse::<Platform>())
}

/// Where the sockets are.
#[derive(Args, Clone, Debug, Default)]
#[group(required = true, multiple = false)]
pub struct SocketArgs {
    /// Unix socket for QEMU. With --devices N > 1 the sockets are PATH.0 to PATH.(N-1)
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Directory for the sockets, made if it is missing: neuron0.sock to neuron(N-1).sock, and control.sock for `ctl`
    #[arg(long, value_name = "DIR")]
    pub socket_dir: Option<PathBuf>,
}

impl SocketArgs {
    /// The socket of device `n` of `devices`.
    fn socket_of(&self, n: u8, devices: u8) -> PathBuf {
        match (&self.socket_dir, &self.socket) {
            (Some(dir), _) => dir.join(format!("neuron{n}.sock")),
            (None, Some(path)) if devices == 1 => path.clone(),
            (None, path) => with_suffix(path.as_deref().unwrap_or(Path::new("")), &format!(".{n}")),
        }
    }

    /// The control socket that goes with the devices' sockets.
    pub fn control(&self) -> Option<PathBuf> {
        match (&self.socket_dir, &self.socket) {
            (Some(dir), _) => Some(dir.join("control.sock")),
            (None, Some(path)) => Some(with_suffix(path, ".ctl")),
            (None, None) => None,
        }
    }

    /// The option that names them, for messages.
    pub fn option(&self) -> &'static str {
        if self.socket_dir.is_some() {
            "socket-dir"
        } else {
            "socket"
        }
    }

    /// Makes the directory; its parent must be there.
    ///
    /// # Errors
    /// A sentence that names the option and the reason.
    pub fn make_dir(&self) -> Result<(), String> {
        let Some(dir) = &self.socket_dir else {
            return Ok(());
        };
        match std::fs::create_dir(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(format!(
                "--socket-dir {} cannot be made: {error}",
                dir.display()
            )),
            _ if !dir.is_dir() => Err(format!("--socket-dir {} is no directory", dir.display())),
            _ => Ok(()),
        }
    }
}

/// One device, decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Where QEMU connects.
    pub socket: PathBuf,
    /// What it is.
    pub product: Product,
    /// Where it pretends to run.
    pub platform: Platform,
    /// What the driver numbers it by.
    pub routing_id: u8,
    /// Its memory.
    pub hbm: HbmGeometry,
}

impl DeviceArgs {
    /// Checks what clap cannot and numbers the devices.
    ///
    /// # Errors
    /// A sentence that names the option, the reason and the remedy.
    pub fn specs(&self) -> Result<Vec<DeviceSpec>, String> {
        let hbm = HbmGeometry::new(self.product.generation(), self.platform, self.hbm).map_err(
            |error| {
                format!(
                    "--hbm {}: {error}",
                    size::exact(self.hbm.unwrap_or_default())
                )
            },
        )?;
        (0..self.devices)
            .map(|n| {
                Ok(DeviceSpec {
                    socket: self.place.socket_of(n, self.devices),
                    product: self.product,
                    platform: self.platform,
                    routing_id: self.routing_id_of(n)?,
                    hbm,
                })
            })
            .collect()
    }

    fn routing_id_of(&self, n: u8) -> Result<u8, String> {
        match self.routing_id {
            Some(first) => first.checked_add(n).filter(|id| *id <= MAX_ROUTING_ID).ok_or_else(|| {
                format!(
                    "--routing-id {first} with --devices {}: ids would pass {MAX_ROUTING_ID}, the driver's highest; start lower",
                    self.devices
                )
            }),
            None => self
                .product
                .routing_id(n)
                .ok_or_else(|| format!("--devices {}: a {} node has 16 devices at most", self.devices, self.product)),
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(product: Product, platform: Platform, hbm: Option<u64>) -> DeviceArgs {
        DeviceArgs {
            place: SocketArgs {
                socket: Some("s".into()),
                socket_dir: None,
            },
            devices: 1,
            product,
            platform,
            routing_id: None,
            hbm,
        }
    }

    #[test]
    fn hbm_only_where_the_driver_reads_bar4() {
        let ok = |product, platform| args(product, platform, Some(4 << 30)).specs().is_ok();
        assert!(ok(Product::Trn2, Platform::Qemu));
        assert!(ok(Product::Trn3, Platform::Qemu));
        assert!(!ok(Product::Trn2, Platform::Silicon));
        assert!(!ok(Product::Trn3, Platform::Emulator));
        assert!(!ok(Product::Trn1, Platform::Qemu));
        assert!(!ok(Product::Inf2, Platform::Qemu));
    }

    #[test]
    fn hbm_errors_name_the_option() {
        let error = |size| {
            args(Product::Trn2, Platform::Qemu, Some(size))
                .specs()
                .unwrap_err()
        };
        assert!(error(128 << 20).starts_with("--hbm 128M: "));
        assert!(error(128 << 20).contains("256 MiB"));
        assert!(error(3 << 30).contains("power of two"));
        assert!(error(u64::MAX).contains("256 GiB"));
    }

    #[test]
    fn devices_become_the_nodes_of_their_number() {
        let mut args = args(Product::Trn2, Platform::Qemu, None);
        args.devices = 3;
        let specs = args.specs().unwrap();
        assert_eq!(
            specs
                .iter()
                .map(|spec| spec.product.node(spec.routing_id))
                .collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert_eq!(specs[2].socket, Path::new("s.2"));
        args.routing_id = Some(62);
        assert!(args.specs().unwrap_err().contains("start lower"));
        args.devices = 2;
        assert_eq!(args.specs().unwrap()[1].routing_id, 63);
        args.place = SocketArgs {
            socket: None,
            socket_dir: Some("d".into()),
        };
        assert_eq!(args.specs().unwrap()[1].socket, Path::new("d/neuron1.sock"));
        args.devices = 1;
        args.routing_id = None;
        assert_eq!(args.specs().unwrap()[0].socket, Path::new("d/neuron0.sock"));
        assert_eq!(args.place.control().unwrap(), Path::new("d/control.sock"));
    }
}
