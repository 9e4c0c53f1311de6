//! MSI-X, which a device has on request (`serve --msix`) and the test driver counts: core 0's copies ask for an interrupt.
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::job::stage;

const COPIES: u64 = 50;
const PATIENCE: Duration = Duration::from_secs(5);

/// Each copy of core 0 interrupts once, and no more come than were asked for.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let class = PathBuf::from(format!("/sys/class/neuron_device/neuron{}", device.index));
    let counter = class.join("interrupts");
    if !counter.exists() {
        return Ok(Outcome::NotOffered(
            "no interrupts: the driver uses none, or the device has no MSI-X (serve --msix)".into(),
        ));
    }
    let count = || -> Result<u64> {
        let text = std::fs::read_to_string(&counter).context("read the count")?;
        text.trim().parse().context("the count")
    };
    stage("configuration space, as lspci sees it");
    let place = class
        .join("device")
        .canonicalize()
        .context("the function")?;
    let function = place.display();
    let config = std::fs::read(place.join("config")).context("configuration space")?;
    let byte = |at: usize| config.get(at).copied().unwrap_or(0);
    let mut at = usize::from(byte(0x34));
    while at != 0 && byte(at) != 0x11 {
        at = usize::from(byte(at + 1));
    }
    ensure!(at != 0, "{function}: no MSI-X capability");
    ensure!(byte(at + 3) & 0x80 != 0, "{function}: MSI-X is not enabled");
    let vectors = std::fs::read_dir(place.join("msi_irqs")).map_or(0, Iterator::count);
    ensure!(vectors == 1, "{function}: {vectors} vectors in use");

    let mut canvas = Canvas::paint(
        device,
        "device",
        device.device(1 << 20)?,
        context.pattern(0),
    )?;
    let first = count()?;
    for n in 0..COPIES {
        stage(format_args!("copy {n}"));
        canvas.copy_within(n * 100, 500_000 + n * 100, 100)?;
        let begin = Instant::now();
        while count()? < first + n + 1 {
            ensure!(
                begin.elapsed() < PATIENCE,
                "copy {n} is done and no interrupt came"
            );
            std::thread::yield_now();
        }
    }
    ensure!(
        count()? == first + COPIES,
        "{} interrupts for {COPIES} copies",
        count()? - first
    );
    canvas.check()?;
    canvas.free()?;
    context.note(format_args!("{COPIES} interrupts for {COPIES} copies"));
    Ok(Outcome::Pass)
}
