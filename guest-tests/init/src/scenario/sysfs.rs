//! What a driver tells of the card by sysfs: serial number, ECC counts, power. Each value is a `note`, so that a run can be
//! asked for those that the server was told to report: `--require stats/hardware/sram_ecc_uncorrected=3`.
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use neuron_protocol::generation::{Block, Platform};
use neuron_protocol::mailbox::api_version;
use neuron_protocol::registers::misc_ram;

use super::{Context, Outcome};
use crate::device::Device;
use crate::ioctl;
use crate::job::stage;

const CLASS: &str = "/sys/class/neuron_device";
/// Below a device's directory. The many counters that only the runtime moves stay out.
const PLACES: [&str; 5] = [
    "info",
    "info/architecture",
    "stats/hardware",
    "stats/power",
    "neuron_core0/stats/tensor_engine",
];
const POWER: &str = "stats/power/utilization";
/// The driver sums up at full minutes, and only those with sixty samples.
const POWER_TIME: Duration = Duration::from_secs(150);

/// Every file is readable; power samples move where the driver takes them.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let base = PathBuf::from(format!("{CLASS}/neuron{}", device.index));
    if !base.join("info").is_dir() {
        return Ok(Outcome::NotOffered(format!(
            "the driver has no {CLASS}/neuronN/info"
        )));
    }
    let mut seen = 0;
    for place in PLACES {
        stage(place);
        seen += tell(context, &base, &base.join(place))?;
    }
    // Of all devices together: ids of server and rack.
    seen += tell(context, Path::new(CLASS), Path::new(CLASS))?;
    ensure!(seen > 0, "no attributes below {}", base.display());
    // A driver does not sample what it takes for an emulation (facts §5.2).
    if device.platform == Platform::Silicon && firmware_api(device)? >= api_version::POWER {
        stage("power at the end of a minute");
        power(context, &base.join(POWER))?;
    }
    Ok(Outcome::Pass)
}

/// Notes what the files of a directory say. Returns how many there are.
fn tell(context: &Context, base: &Path, directory: &Path) -> Result<usize> {
    let Ok(list) = fs::read_dir(directory) else {
        return Ok(0);
    };
    let mut files: Vec<PathBuf> = list
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file() && !path.ends_with("uevent"))
        .collect();
    files.sort();
    for file in &files {
        let name = file.strip_prefix(base).unwrap_or(file);
        let value = read(file)?;
        context.note(format_args!("sysfs {}={value}", name.display()));
    }
    Ok(files.len())
}

fn read(file: &Path) -> Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn firmware_api(device: &Device) -> Result<u32> {
    let (bar, _) = device.register_bar()?;
    let misc = device
        .generation
        .block_base(Block::MiscRam, 0)
        .context("misc RAM")?;
    let mut value = [0];
    let address = bar + u64::from(misc + misc_ram::API_VERSION);
    ioctl::bar_read(device.file(), &[address], &mut value)?;
    Ok(value[0])
}

/// `STATUS,TIME,MIN,MAX,AVERAGE` of the last full minute, percentages: least below average below most.
fn power(context: &Context, file: &Path) -> Result<()> {
    let begin = Instant::now();
    loop {
        let text = read(file)?;
        let fields: Vec<&str> = text.split(',').collect();
        let [status, time, least, most, average] = fields[..] else {
            bail!("{}: {text:?}", file.display());
        };
        // Some drivers say so before the first minute has ended.
        if status == "POWER_STATUS_VALID" && time != "0" {
            let [least, most, average] =
                [least, most, average].map(|percent| percent.parse::<f64>().unwrap_or(-1.0));
            ensure!(
                0.0 <= least && least < average && average < most,
                "power does not move: {text}"
            );
            for (name, value) in [
                ("power_least", least),
                ("power_average", average),
                ("power_most", most),
            ] {
                context.metric(name, value, "percent");
            }
            return Ok(());
        }
        ensure!(
            begin.elapsed() < POWER_TIME,
            "no valid power after {} s: {text}",
            POWER_TIME.as_secs()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}
