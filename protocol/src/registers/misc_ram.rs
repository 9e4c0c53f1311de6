//! The firmware window ("misc RAM") of the register BAR (contract §4, facts §5.1).

/// Firmware API version: 3 enables power reads, 7 the register mailbox.
pub const API_VERSION: u32 = 0x000;
/// Health check status (facts §5.1 by way of contract §12.3).
pub const HEALTH_STATUS: u32 = 0x004;
/// Health check sequence: heartbeat 19:12.
pub const HEALTH_SEQUENCE: u32 = 0x00c;
/// Routing id: the position of the device in its server.
pub const ROUTING_ID: u32 = 0x024;
/// Serial number, low word.
pub const SERIAL_LOW: u32 = 0x038;
/// Serial number, high word.
pub const SERIAL_HIGH: u32 = 0x03c;
/// SRAM ECC: corrected 31:16, uncorrected 15:0.
pub const SRAM_ECC: u32 = 0x040;
/// HBM ECC of stack 0; one word per stack.
pub const HBM_ECC: u32 = 0x044;
/// Power of die 0 and, one word on, die 1: 15:0 in 1/100 %, 31:16 sample counter.
pub const POWER: u32 = 0x054;
/// Sample of the second die; one die on V2, and on V3 and V4 where the platform is virtual (contract §2).
pub const POWER_DIE_1: u32 = 0x058;
/// HBM repair state, bits 1:0.
pub const HBM_REPAIR: u32 = 0x064;
/// Server id 14:0, valid bit 15, rack id 30:16, valid bit 31.
pub const SERVER_ID: u32 = 0x070;
/// Build number of the firmware.
pub const FW_BUILD: u32 = 0x074;
/// Reservation id, high word.
pub const RESERVATION_HIGH: u32 = 0x080;
/// Reservation id, low word.
pub const RESERVATION_LOW: u32 = 0x084;
/// Register mailbox: written 1 before the trigger.
pub const ACK: u32 = 0x0f0;
/// Data window of both mailboxes.
pub const DATA: u32 = 0x100;
/// Bytes of the data window.
pub const DATA_SIZE: u32 = 0x80;
/// Reset map, high word: engines of the driver's own copies (drivers from 2.27).
pub const RESET_MAP_HIGH: u32 = 0x1d4;
/// Reset map: cores, SDMA groups, `TopSPs`.
pub const RESET_MAP: u32 = 0x1d8;
/// Reset type; the device clears it to acknowledge.
pub const RESET: u32 = 0x1ec;
/// Legacy: request address, high word. Register mailbox: request, then response header.
pub const REQUEST_HIGH: u32 = 0x1f0;
/// Legacy: request address, low word. Register mailbox: request CRC.
pub const REQUEST_LOW: u32 = 0x1f4;
/// Legacy: response address, high word.
pub const RESPONSE_HIGH: u32 = 0x1f8;
/// Legacy: response address, low word.
pub const RESPONSE_LOW: u32 = 0x1fc;
/// Written 1 to start; the register mailbox polls it for 0.
pub const TRIGGER: u32 = 0x800;
/// Bit 3: reset in progress.
pub const STATUS: u32 = 0x808;
/// One past the last register.
pub const SIZE: u32 = 0x80c;

/// [`RESET`]: the whole device (contract §7).
pub const RESET_DEVICE: u32 = 1;
/// [`RESET`]: the cores of [`RESET_MAP`] (contract §7).
pub const RESET_CORES: u32 = 2;

/// Registers that firmware alone writes: what the driver writes there is lost.
#[must_use]
pub const fn is_read_only(offset: u32) -> bool {
    matches!(
        offset,
        API_VERSION | HEALTH_STATUS | HEALTH_SEQUENCE | SERIAL_LOW | SERIAL_HIGH | SRAM_ECC
            ..=POWER_DIE_1
                | HBM_REPAIR
                | SERVER_ID
                | FW_BUILD
                | RESERVATION_HIGH
                | RESERVATION_LOW
                | STATUS
    )
}

/// Name of a register, if it is known.
#[must_use]
pub const fn name(offset: u32) -> Option<&'static str> {
    Some(match offset {
        API_VERSION => "api_version",
        HEALTH_STATUS => "health_status",
        HEALTH_SEQUENCE => "health_sequence",
        ROUTING_ID => "device_id",
        0x030 => "instance_partition",
        SERIAL_LOW => "serial_low",
        SERIAL_HIGH => "serial_high",
        SRAM_ECC => "sram_ecc",
        0x044..0x054 => "hbm_ecc",
        POWER | POWER_DIE_1 => "power",
        HBM_REPAIR => "hbm_repair",
        SERVER_ID => "server_id",
        FW_BUILD => "fw_build",
        RESERVATION_HIGH | RESERVATION_LOW => "reservation_id",
        ACK => "ack",
        0x100..0x180 => "data",
        0x180..0x19c => "pod",
        RESET_MAP_HIGH => "reset_map_high",
        RESET_MAP => "reset_map",
        RESET => "reset",
        REQUEST_HIGH => "request_high",
        REQUEST_LOW => "request_low",
        RESPONSE_HIGH => "response_high",
        RESPONSE_LOW => "response_low",
        TRIGGER => "trigger",
        STATUS => "status",
        _ => return None,
    })
}
