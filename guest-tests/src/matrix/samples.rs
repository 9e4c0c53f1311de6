//! Results for tests: every status once.
use super::record::{
    Attempt, CellRecord, FindingRecord, KNOWN_DEFECT, Made, NOT_OFFERED, PASS, Results,
    ScenarioRecord, Status,
};

fn scenario(name: &str, result: &str, reason: &str) -> ScenarioRecord {
    ScenarioRecord {
        name: name.into(),
        device: "0".into(),
        result: result.into(),
        reason: reason.into(),
        millis: 12.5,
    }
}

/// An attempt in which everything went well.
pub fn passed() -> Attempt {
    Attempt {
        started: "2026-01-02T03:04:05Z".into(),
        seconds: 30.0,
        scenarios: vec![
            scenario("info", PASS, ""),
            scenario("zero_copy", NOT_OFFERED, "ioctl 124: ENOTTY"),
        ],
        release: Some("6.1.0-test".into()),
        ..Attempt::default()
    }
}

/// An attempt with a failed scenario.
pub fn failed() -> Attempt {
    Attempt {
        findings: vec![FindingRecord {
            kind: "failed scenario".into(),
            code: 1,
            text: "scenario batch on device 0: byte 3 | 4".into(),
        }],
        scenarios: vec![scenario("batch", "fail", "byte 3 | 4")],
        logs: Some("logs/x".into()),
        ..passed()
    }
}

/// An attempt that passed but for a known defect.
pub fn known() -> Attempt {
    Attempt {
        scenarios: vec![
            scenario("info", PASS, ""),
            scenario("past", KNOWN_DEFECT, "it frees what it never had"),
        ],
        ..passed()
    }
}

/// A cell.
pub fn cell(product: &str, driver: &str, attempts: Vec<Attempt>) -> CellRecord {
    let mut cell = CellRecord {
        name: format!("{product}/qemu/6.1/{driver}"),
        status: Status::NotRun,
        cause: Some("the matrix ended before it".into()),
        product: product.into(),
        platform: "qemu".into(),
        kernel: "6.1".into(),
        driver: driver.into(),
        devices: 1,
        scenarios: "all".into(),
        attempts: Vec::new(),
    };
    cell.add(attempts);
    cell
}

/// One cell of every status.
pub fn every_status() -> Results {
    let mut unsupported = cell("trn3", "2.24.7.0", vec![]);
    unsupported.status = Status::NotSupported;
    unsupported.cause = Some("the driver's PCI table has no 1d0f:7564 (trn3)".into());
    let cells = vec![
        cell("trn1", "2.24.7.0", vec![passed()]),
        cell("inf2", "2.24.7.0", vec![failed()]),
        cell("trn2", "2.24.7.0", vec![failed(), passed()]),
        unsupported,
        cell("trn1", "2.25.4.0", vec![]),
        cell("trn1", "2.19.64.0", vec![known()]),
    ];
    Results {
        format: 1,
        shard: None,
        made: vec![Made {
            started: "2026-01-02T03:04:05Z".into(),
            ended: "2026-01-02T04:04:05Z".into(),
            revision: "abc1234".into(),
            qemu: "10.1.0".into(),
            accel: "tcg".into(),
        }],
        planned: cells.iter().map(|c| c.name.clone()).collect(),
        cells,
    }
}
