//! Faults with a name, and what a driver is expected to do about each. What drivers did is in docs/faults.md.

/// A named fault.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// The rule, as [`super::inline`] reads it.
    pub rule: &'static str,
    /// What the device does.
    pub device: &'static str,
    /// What a driver is expected to do.
    pub driver: &'static str,
}

const fn scenario(
    name: &'static str,
    rule: &'static str,
    device: &'static str,
    driver: &'static str,
) -> Scenario {
    Scenario {
        name,
        rule,
        device,
        driver,
    }
}

const TIMES_OUT: &str = "waits its budget, says that the DMA timed out, fails the ioctl; later copies on a queue that was not lost work";
const LOST_QUEUE: &str = "waits its budget, says that the DMA timed out, fails the ioctl; the queue is lost until it is programmed anew";
const SILENT: &str =
    "cannot notice: the copy succeeds with wrong contents, which only a check of the data finds";
const RETRIES: &str = "tries again with the next sequence number within its patience, and goes on";

/// The scenarios.
pub const SCENARIOS: [Scenario; 32] = [
    scenario(
        "marker-drop-once",
        "on=marker action=drop nth=1",
        "the first completion marker is never written",
        TIMES_OUT,
    ),
    scenario(
        "marker-drop-all",
        "on=marker action=drop",
        "no marker is ever written",
        "as for one, for every copy",
    ),
    scenario(
        "marker-late",
        "on=marker action=delay by=15ms nth=1",
        "the first marker comes 15 ms late, within the budget of silicon (40 or 80 ms)",
        "waits, and succeeds",
    ),
    scenario(
        "marker-too-late",
        "on=marker action=delay by=5s nth=1",
        "the first marker comes 5 s late; nothing of its queue passes it",
        LOST_QUEUE,
    ),
    scenario(
        "marker-twice",
        "on=marker action=duplicate by=5ms nth=1",
        "the first marker is written again 5 ms later",
        "succeeds; a slot that is cleared before the second may pass the next copy too early",
    ),
    scenario(
        "marker-corrupt",
        "on=marker action=corrupt byte=0 mask=0x1 nth=1",
        "one bit of the first marker is wrong",
        "does not take it for the marker: times out",
    ),
    scenario(
        "marker-half-word",
        "on=marker action=tear-half by=2ms nth=1",
        "the halves of the first marker land 2 ms apart",
        "does not take half of it for the marker; waits, and succeeds",
    ),
    scenario(
        "marker-before-data",
        "on=copy action=marker-first by=20ms nth=1",
        "the first data lands 20 ms after the marker of its batch",
        SILENT,
    ),
    scenario(
        "data-drop-once",
        "on=copy action=drop nth=1",
        "the first data is lost",
        SILENT,
    ),
    scenario(
        "data-corrupt-once",
        "on=copy action=corrupt byte=0 mask=0xff nth=1",
        "the first byte of the first data is wrong",
        SILENT,
    ),
    scenario(
        "data-error-once",
        "on=copy action=error nth=1",
        "an AXI response error: the engine aborts",
        LOST_QUEUE,
    ),
    scenario(
        "fetch-error-once",
        "on=fetch action=error nth=1",
        "descriptors cannot be read: the engine aborts",
        LOST_QUEUE,
    ),
    scenario(
        "fetch-lost-once",
        "on=fetch action=drop nth=1",
        "descriptors never arrive: the queue hangs",
        LOST_QUEUE,
    ),
    scenario(
        "descriptor-corrupt-once",
        "on=fetch action=corrupt byte=3 mask=0x1 direction=m2s nth=1",
        "a descriptor arrives with another ring id",
        "where ring id errors abort (up to 2.25.4.0 on V2 and V3): waits its budget, says that the DMA timed out, fails the ioctl; where newer drivers mask them: nothing",
    ),
    scenario(
        "doorbell-drop-once",
        "on=doorbell action=drop direction=m2s nth=1",
        "the first source doorbell is lost",
        "waits its budget, says that the DMA timed out, fails the ioctl; the ring is one batch behind from then on, so that later copies see the marker of the one before and succeed with wrong contents",
    ),
    scenario(
        "doorbell-twice",
        "on=doorbell action=duplicate direction=m2s nth=1",
        "the first source doorbell counts twice",
        "the engine meets stale descriptors behind the right ones and aborts: waits its budget, says that the DMA timed out, fails the ioctl",
    ),
    scenario(
        "tail-short",
        "on=doorbell action=pointer shift=-1 direction=m2s nth=1",
        "the tail stops one descriptor short: the marker's",
        "waits its budget, says that the DMA timed out, fails the ioctl; the next copies may see that marker and succeed with wrong contents",
    ),
    scenario(
        "queue-stop",
        "on=doorbell action=stop descriptors=1 direction=m2s nth=1",
        "the queue does one descriptor and then none",
        LOST_QUEUE,
    ),
    scenario(
        "engine-stall",
        "on=copy action=stall nth=1",
        "an engine stops doing anything",
        LOST_QUEUE,
    ),
    scenario(
        "engine-slow",
        "on=copy action=delay by=500us",
        "every descriptor takes half a millisecond",
        "waits, and succeeds as long as its budget lasts",
    ),
    scenario(
        "reset-never",
        "on=reset action=drop",
        "no reset is ever acknowledged",
        "asks again in windows (device 30 s, core 10 s), gives up after 120 s (V2) or 480 s (V3, V4), and the device is not usable",
    ),
    scenario(
        "reset-retry",
        "on=reset action=drop nth=1",
        "the first reset is not acknowledged",
        "asks again after its window, and goes on",
    ),
    scenario(
        "reset-late",
        "on=reset action=delay by=3s nth=1",
        "the first reset is acknowledged 3 s late",
        "polls on, and goes on",
    ),
    scenario(
        "mailbox-silent",
        "on=mailbox action=drop",
        "firmware never answers",
        "gives up after its tries, and does without or fails the ioctl",
    ),
    scenario(
        "mailbox-drop-once",
        "on=mailbox action=drop nth=1",
        "firmware does not answer the first request",
        RETRIES,
    ),
    scenario(
        "mailbox-wrong-sequence",
        "on=mailbox action=wrong-sequence nth=1",
        "the first answer has the next sequence number",
        "ignores it; tries again",
    ),
    scenario(
        "mailbox-late",
        "on=mailbox action=delay by=1500ms nth=1",
        "the first answer comes half a second after the driver's patience for it",
        "tries again after a second; takes the second answer, ignores the late one",
    ),
    scenario(
        "mailbox-corrupt",
        "on=mailbox action=corrupt byte=4 mask=0xff nth=1",
        "the first answer's data is wrong from its first byte",
        "answers in host memory have no checksum: takes it; in registers (firmware API 7) the checksum fails",
    ),
    scenario(
        "registers-ones",
        "on=register action=value value=0xffffffff",
        "every register reads all ones",
        "refuses the device in probe, or takes it for gone",
    ),
    scenario(
        "registers-deadbeef",
        "on=register action=value value=0xdeadbeef",
        "every register reads 0xdeadbeef, as for accesses that the fabric refuses",
        "reads again and again; 2.25.4.0 comes out of probe after ten minutes, without a device",
    ),
    scenario(
        "surprise-removal",
        "on=doorbell action=remove nth=40",
        "the device leaves the bus in the middle of its work",
        "its waits time out, its ioctls fail; nothing crashes, and the module can be unloaded",
    ),
    scenario(
        "disconnect",
        "on=doorbell action=disconnect nth=40",
        "QEMU loses the connection in the middle of the driver's work",
        "as when the device leaves the bus; QEMU does not connect again",
    ),
];

/// The scenario of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

/// All of them, for people.
#[must_use]
pub fn list() -> String {
    let one = |Scenario {
                   name,
                   rule,
                   device,
                   driver,
               }: &Scenario| {
        format!("{name}\n    rule:    {rule}\n    device:  {device}\n    driver:  {driver}\n")
    };
    SCENARIOS.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::fault::inline;

    #[test]
    fn every_scenario_is_a_rule_and_has_its_own_name() {
        for scenario in &SCENARIOS {
            let rules = inline(scenario.name).unwrap();
            assert_eq!(rules[0].name, scenario.name);
            assert_eq!(
                SCENARIOS
                    .iter()
                    .filter(|other| other.name == scenario.name)
                    .count(),
                1
            );
        }
    }
}
