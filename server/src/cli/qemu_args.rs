//! `qemu-args`: the QEMU arguments that go with a set of `serve` options.
use std::path::{Path, PathBuf};

use clap::Args;
use neuron_protocol::generation::Platform;
use serde::Serialize;
use serde_json::json;

use super::device::{DeviceArgs, DeviceSpec};
use super::{exit::Exit, size};

/// BAR space that fits below QEMU's default of 40 physical address bits beside RAM: one device of any product does,
/// two trn2 or trn3 do not (contract §13.12).
const DEFAULT_BAR_SPACE: u64 = 300 << 30;
/// Enough for 16 devices (contract §13.12).
const PHYS_BITS: u8 = 46;

/// Options of `qemu-args`.
#[derive(Args, Debug)]
pub struct QemuArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// Guest memory
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = memory)]
    memory: u64,

    /// Print JSON: the arguments as a list, and the remarks
    #[arg(long)]
    json: bool,
}

/// QEMU's `-m` counts whole mebibytes, and a bare number there is not bytes.
fn memory(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes == 0 || bytes % (1 << 20) != 0 {
        return Err(format!(
            "guest memory of {bytes} bytes is not a whole number of MiB: write 2G or 512M"
        ));
    }
    Ok(bytes)
}

/// The arguments, and what a person should know beside them.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Invocation {
    /// For `qemu-system-x86_64` 10.1 or newer, unquoted.
    pub args: Vec<String>,
    /// Sentences.
    pub remarks: Vec<String>,
}

impl QemuArgs {
    /// Prints the arguments on stdout, remarks on stderr.
    pub fn run(&self) -> Exit {
        let specs = match self.device.specs() {
            Ok(specs) => specs,
            Err(error) => {
                eprintln!("error: {error}");
                return Exit::Usage;
            }
        };
        let invocation = invocation(&specs, self.memory);
        if self.json {
            println!("{:#}", json!(invocation));
        } else {
            println!(
                "{}",
                invocation
                    .args
                    .iter()
                    .map(|arg| quote(arg))
                    .collect::<Vec<_>>()
                    .join(" ")
            );
            for remark in &invocation.remarks {
                eprintln!("# {remark}");
            }
        }
        Exit::Ok
    }
}

/// The arguments for these devices and this much guest memory.
pub fn invocation(specs: &[DeviceSpec], memory: u64) -> Invocation {
    let mut args: Vec<String> = Vec::new();
    let mut remarks = vec![
        "QEMU 10.1 or newer. Start `serve` with the same device options first: QEMU exits if nobody listens, and never reconnects"
            .to_owned(),
        "share=on is what lets the device reach guest memory; with share=off its writes never arrive".to_owned(),
        "no translating vIOMMU: the Neuron driver hands physical addresses to the device".to_owned(),
    ];
    // The size is given twice on purpose: without -m older versions compare the backend with their own default.
    args.extend(["-machine".to_owned(), "q35,memory-backend=mem".to_owned()]);
    args.extend(["-m".to_owned(), size::exact(memory)]);
    args.extend([
        "-object".to_owned(),
        format!(
            "memory-backend-memfd,id=mem,size={},share=on",
            size::exact(memory)
        ),
    ]);
    if bar_space(specs) > DEFAULT_BAR_SPACE {
        args.extend(["-cpu".to_owned(), format!("qemu64,phys-bits={PHYS_BITS}")]);
        remarks.push(format!(
            "these devices need {} of address space for their BARs, hence phys-bits={PHYS_BITS}; with -accel kvm use \
             -cpu host,host-phys-bits=on on a host that has as many",
            size::exact(bar_space(specs))
        ));
    }
    // The default network card wants a boot ROM, which a QEMU unpacked by scripts/get-qemu does not have.
    args.extend(["-nic".to_owned(), "none".to_owned()]);
    for spec in specs {
        let path = absolute(&spec.socket);
        let device = json!({
            "driver": "vfio-user-pci",
            "socket": { "type": "unix", "path": path.to_string_lossy() },
        });
        args.extend(["-device".to_owned(), device.to_string()]);
    }
    Invocation { args, remarks }
}

fn bar_space(specs: &[DeviceSpec]) -> u64 {
    specs.iter().fold(0, |sum, spec| {
        let registers = spec.product.generation().register_bar_size;
        let windows = if spec.platform == Platform::Qemu {
            2
        } else {
            1
        };
        sum + registers * windows + spec.hbm.bar_size()
    })
}

/// QEMU may be started elsewhere.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Quotes for a POSIX shell.
fn quote(arg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) {
        arg.to_owned()
    } else {
        format!("'{}'", arg.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::Product;

    use super::*;
    use crate::memory::HbmGeometry;

    fn spec(product: Product, platform: Platform, hbm: Option<u64>) -> DeviceSpec {
        let hbm = HbmGeometry::new(product.generation(), platform, hbm).unwrap();
        DeviceSpec {
            socket: "/run/it's.sock".into(),
            product,
            platform,
            routing_id: 0,
            hbm,
        }
    }

    fn one() -> DeviceSpec {
        spec(Product::Trn1, Platform::Qemu, None)
    }

    #[test]
    fn phys_bits_only_when_the_bars_need_them() {
        let has_cpu = |product, platform, hbm, devices| {
            let specs = vec![spec(product, platform, hbm); devices];
            invocation(&specs, 1 << 30)
                .args
                .iter()
                .any(|arg| arg == "-cpu")
        };
        assert!(!has_cpu(Product::Trn2, Platform::Silicon, None, 1));
        assert!(has_cpu(Product::Trn2, Platform::Silicon, None, 2));
        assert!(!has_cpu(Product::Trn2, Platform::Qemu, None, 2));
        assert!(has_cpu(Product::Trn2, Platform::Qemu, None, 16));
        assert!(!has_cpu(Product::Trn2, Platform::Qemu, Some(1 << 30), 16));
    }

    #[test]
    fn device_json_survives_the_shell() {
        let invocation = invocation(&[one()], 1 << 30);
        let device = invocation.args.last().unwrap();
        let value: serde_json::Value = serde_json::from_str(device).unwrap();
        assert_eq!(value["socket"]["path"], "/run/it's.sock");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
        assert_eq!(quote("a,b=c"), "a,b=c");
    }

    #[test]
    fn memory_is_shared_and_of_one_size() {
        let text = invocation(&[one()], 3 << 30).args.join(" ");
        assert!(text.contains("memory-backend-memfd,id=mem,size=3G,share=on"));
        assert!(text.contains("-m 3G"));
    }
}
