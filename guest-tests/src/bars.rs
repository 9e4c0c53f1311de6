//! Did the guest give every device its BARs? A passing run does not prove it: a driver may do without BAR4 and never
//! say so (contract §13.9).
use std::collections::{BTreeMap, BTreeSet};

use neuron_protocol::generation::VENDOR_ID;

use crate::outcome::{Failure, Finding};

/// BARs that each function has on every product and platform: the registers and the device memory.
const NEEDED: [u8; 2] = [0, 4];

/// What the kernel's PCI scan said, by function.
#[derive(Debug, Default)]
pub struct Bars {
    functions: BTreeMap<String, BTreeSet<u8>>,
}

impl Bars {
    /// Takes in a console line.
    pub fn line(&mut self, line: &str) {
        let Some((_, rest)) = line.split_once("pci 0000:") else {
            return;
        };
        let Some((address, said)) = rest.split_once(": ") else {
            return;
        };
        if said.starts_with(&format!("[{VENDOR_ID:04x}:")) {
            self.functions.entry(address.to_owned()).or_default();
        } else if let (Some(bars), Some(bar)) = (self.functions.get_mut(address), placed(said)) {
            bars.insert(bar);
        }
    }

    /// What is missing of `devices` functions.
    pub fn complaints(&self, devices: usize) -> Vec<Finding> {
        let setup = |text| Finding::new(Failure::Setup, text);
        if self.functions.len() != devices {
            let text = format!(
                "the guest's PCI scan found {} of {devices} devices",
                self.functions.len()
            );
            return vec![setup(text)];
        }
        let mut found = Vec::new();
        for (address, bars) in &self.functions {
            for bar in NEEDED.iter().filter(|b| !bars.contains(b)) {
                found.push(setup(format!(
                    "the guest gave BAR{bar} of {address} no address: too little room in its physical address space \
                     (several devices need a CPU model with more phys-bits)"
                )));
            }
        }
        found
    }
}

/// The BAR that a line places: `reg 0x20: [mem A-B 64bit pref]` up to 6.7, `BAR 4 [mem A-B 64bit pref]` since, and the
/// same with `: assigned` when the kernel places it by itself.
fn placed(said: &str) -> Option<u8> {
    let (name, rest) = said.split_once('[')?;
    let name = name.trim_end_matches([' ', ':']);
    let bar = if let Some(offset) = name.strip_prefix("reg 0x") {
        u8::try_from((u32::from_str_radix(offset, 16).ok()?.checked_sub(0x10)?) / 4).ok()?
    } else {
        let mut words = name.strip_prefix("BAR ")?.split([':', ' ']);
        words.next()?.parse().ok()?
    };
    let (range, tail) = rest.split_once(']')?;
    if tail.contains("can't") || tail.contains("failed") || tail.contains("no space") {
        return None;
    }
    let start = range.strip_prefix("mem 0x")?.split('-').next()?;
    (u64::from_str_radix(start, 16).ok()? != 0).then_some(bar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(log: &str) -> Bars {
        let mut bars = Bars::default();
        log.lines().for_each(|l| bars.line(l));
        bars
    }

    const OLD: &str = "[    0.3] pci 0000:00:01.0: [1d0f:7364] type 00 class 0x088000
[    0.3] pci 0000:00:01.0: reg 0x10: [mem 0x380000000000-0x3800ffffffff 64bit pref]
[    0.3] pci 0000:00:01.0: reg 0x20: [mem 0x384000000000-0x387fffffffff 64bit pref]
[    0.3] pci 0000:00:1f.0: [8086:2918] type 00 class 0x060100";
    const NEW: &str = "pci 0000:00:01.0: [1d0f:7364] type 00 class 0x088000 PCIe Endpoint
pci 0000:00:01.0: BAR 0 [mem 0x380000000000-0x3800ffffffff 64bit pref]
pci 0000:00:01.0: BAR 4 [mem 0x384000000000-0x387fffffffff 64bit pref]: assigned";

    #[test]
    fn placed_bars_are_accepted_in_both_spellings() {
        assert_eq!(scan(OLD).complaints(1), []);
        assert_eq!(scan(NEW).complaints(1), []);
    }

    #[test]
    fn bar_without_an_address_is_a_complaint() {
        for log in [
            OLD.replace(
                "mem 0x384000000000-0x387fffffffff",
                "mem 0x00000000-0x3fffffffff",
            ),
            NEW.replace(": assigned", ": can't assign; no space"),
        ] {
            let complaints = scan(&log).complaints(1);
            assert_eq!(complaints.len(), 1, "{log}");
            assert!(complaints[0].text.contains("BAR4 of 00:01.0"));
        }
    }

    #[test]
    fn missing_device_is_a_complaint() {
        assert!(scan(NEW).complaints(2)[0].text.contains("1 of 2"));
    }
}
