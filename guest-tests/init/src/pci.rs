//! The Neuron functions the guest's PCI bus shows, for messages when no device node appears.
use std::fmt;
use std::fs;

/// PCI vendor of every Neuron function (contract §1).
const VENDOR: &str = "0x1d0f";

/// One function of the vendor.
#[derive(Clone, Debug)]
pub struct Function {
    /// For example `0000:00:03.0`.
    pub address: String,
    /// Device id as sysfs prints it.
    pub device: String,
    /// Name of the bound driver, if any.
    pub driver: Option<String>,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.driver.as_deref().unwrap_or("no driver bound");
        write!(f, "{} id {} ({driver})", self.address, self.device)
    }
}

/// Every Neuron function on the bus, by address.
pub fn functions() -> Vec<Function> {
    let Ok(entries) = fs::read_dir("/sys/bus/pci/devices") else {
        return Vec::new();
    };
    let mut found: Vec<Function> = entries
        .flatten()
        .filter_map(|entry| {
            let at = entry.path();
            let read = |name| {
                fs::read_to_string(at.join(name))
                    .map(|t| t.trim().to_owned())
                    .ok()
            };
            (read("vendor").as_deref() == Some(VENDOR)).then(|| Function {
                address: entry.file_name().to_string_lossy().into_owned(),
                device: read("device").unwrap_or_default(),
                driver: fs::read_link(at.join("driver")).ok().and_then(|target| {
                    target.file_name().map(|n| n.to_string_lossy().into_owned())
                }),
            })
        })
        .collect();
    found.sort_by(|a, b| a.address.cmp(&b.address));
    found
}

/// The bus in one line.
pub fn describe() -> String {
    let functions = functions();
    if functions.is_empty() {
        return "no function with vendor 1d0f on the PCI bus".into();
    }
    functions
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
