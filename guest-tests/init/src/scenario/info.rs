//! What the driver says about itself and the device.
use anyhow::{Result, ensure};
use neuron_protocol::ioctl as abi;

use super::{Context, Outcome};
use crate::ioctl::{self, Cause};
use crate::pci;

/// `DEVICE_BASIC_INFO`, `DRIVER_INFO_GET`, `DEVICE_INFO`, `DEVICE_BDF_EXT`, `COMPATIBLE_VERSION` agree
/// with one another and with the PCI bus; an unknown request is refused.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let file = device.file();

    let mut driver = abi::DriverInfo::default();
    ioctl::plain(file, abi::DRIVER_INFO_GET, &mut driver)?;
    ensure!(
        (driver.architecture, driver.revision) == (device.generation.arch, device.revision),
        "DRIVER_INFO_GET says architecture {} revision {}, DEVICE_BASIC_INFO {} and {}",
        driver.architecture,
        driver.revision,
        device.generation.arch,
        device.revision
    );
    ensure!(
        usize::try_from(driver.size)? == size_of::<abi::DriverInfo>(),
        "DRIVER_INFO_GET size {}",
        driver.size
    );

    let mut version = abi::CompatibleVersion::default();
    ioctl::plain(file, abi::COMPATIBLE_VERSION, &mut version)?;
    ensure!(
        version.min <= version.max,
        "COMPATIBLE_VERSION {} > {}",
        version.min,
        version.max
    );

    let mut info = abi::DeviceInfo::default();
    ioctl::plain(file, abi::DEVICE_INFO, &mut info)?;
    ensure!(
        info.architecture == device.generation.arch,
        "DEVICE_INFO architecture {}",
        info.architecture
    );
    ensure!(
        info.connected_device_count <= 8,
        "DEVICE_INFO: {} neighbours",
        info.connected_device_count
    );
    ensure!(
        info.bar_address[0] != 0 && info.bar_size[0] != 0,
        "DEVICE_INFO: no register BAR"
    );

    // The index counts from the device that is asked (a container's view).
    let mut place = abi::DeviceBdfExt::default();
    ioctl::plain(file, abi::DEVICE_BDF_EXT, &mut place)?;
    let address = format!(
        "{:04x}:{:02x}:{:02x}.{}",
        place.domain, place.bus_number, place.slot, place.func
    );
    let bus = pci::functions();
    ensure!(
        bus.iter().any(|f| f.address == address),
        "DEVICE_BDF_EXT says {address}, but the bus shows {}",
        pci::describe()
    );

    // Nothing above 133 exists in any driver read; both answers mean "unknown" (contract §11).
    let unknown = abi::encode(abi::Direction::ReadWrite, 0xfe, 8);
    ensure!(
        !device.offers(unknown),
        "request {unknown:#x} is not refused"
    );

    let mut missing = abi::MemGetExtendedInfo {
        mem_handle: u64::MAX - 4095,
        version: 1,
        ..Default::default()
    };
    let answer = ioctl::plain(file, abi::MEM_GET_EXTENDED_INFO, &mut missing);
    ensure!(
        matches!(answer, Err(r) if matches!(r.cause, Cause::Positive(_) | Cause::Errno(_))),
        "an unknown handle is not refused"
    );

    context.note(format_args!(
        "pci {address} architecture {} revision {} features {:#x} runtime {}..{} neighbours {} register BAR {} MiB",
        device.generation.name,
        device.revision,
        driver.feature_flags1,
        version.min,
        version.max,
        info.connected_device_count,
        info.bar_size[0] >> 20
    ));
    Ok(Outcome::Pass)
}
