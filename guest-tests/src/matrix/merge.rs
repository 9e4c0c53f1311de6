//! Joins the results of shards and of re-runs.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::record::{CellRecord, RESULTS, Results, Status};

/// Joins the results in several directories. A cell that has results in more than one of them keeps all its attempts, so
/// that a re-run that passes shows the cell as flaky and not as passed.
///
/// # Errors
/// A directory without results.
pub fn directories(dirs: &[PathBuf]) -> Result<Results> {
    let parts = dirs
        .iter()
        .map(|dir| {
            let mut part = Results::read(&dir.join(RESULTS))?;
            relocate(&mut part, dir);
            Ok(part)
        })
        .collect::<Result<Vec<_>>>()?;
    join(parts)
}

/// Logs stay where they are.
fn relocate(part: &mut Results, dir: &Path) {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    for attempt in part.cells.iter_mut().flat_map(|c| &mut c.attempts) {
        if let Some(logs) = &mut attempt.logs {
            *logs = dir.join(&*logs).to_string_lossy().into_owned();
        }
    }
}

/// Joins parts; cells that were planned and are in none of them are told as not run.
///
/// # Errors
/// Nothing to join.
pub fn join(parts: Vec<Results>) -> Result<Results> {
    let mut parts = parts.into_iter();
    let Some(mut all) = parts.next() else {
        bail!("merge: which directories?")
    };
    let mut at: BTreeMap<String, usize> = BTreeMap::new();
    for (index, cell) in all.cells.iter().enumerate() {
        at.insert(cell.name.clone(), index);
    }
    for part in parts {
        all.made.extend(part.made);
        all.planned.extend(part.planned);
        for cell in part.cells {
            if let Some(index) = at.get(&cell.name) {
                combine(&mut all.cells[*index], cell);
            } else {
                at.insert(cell.name.clone(), all.cells.len());
                all.cells.push(cell);
            }
        }
    }
    all.shard = None;
    let mut seen = BTreeSet::new();
    all.planned.retain(|name| seen.insert(name.clone()));
    all.made.dedup();
    all.cells.extend(
        all.planned
            .iter()
            .filter(|name| !at.contains_key(*name))
            .map(|name| lost(name)),
    );
    // The order of the plan, whatever the order of the directories.
    let order: BTreeMap<&String, usize> = all
        .planned
        .iter()
        .enumerate()
        .map(|(n, p)| (p, n))
        .collect();
    all.cells
        .sort_by_key(|cell| order.get(&cell.name).copied().unwrap_or(usize::MAX));
    Ok(all)
}

fn combine(cell: &mut CellRecord, other: CellRecord) {
    if other.attempts.is_empty() {
        return;
    }
    cell.add(other.attempts);
}

/// A cell whose shard is missing. Its name is all that is known.
fn lost(name: &str) -> CellRecord {
    let mut parts = name.splitn(5, '/').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    let (model, platform, kernel, driver, scenarios) = (next(), next(), next(), next(), next());
    let (product, devices) = match model.split_once('x') {
        Some((product, n)) => (product.to_owned(), n.parse().unwrap_or(1)),
        None => (model, 1),
    };
    CellRecord {
        name: name.to_owned(),
        status: Status::NotRun,
        cause: Some("planned, but in none of the merged results: is a shard missing?".to_owned()),
        product,
        platform,
        kernel,
        driver,
        devices,
        scenarios: if scenarios.is_empty() {
            super::cell::ALL_SCENARIOS.to_owned()
        } else {
            scenarios
        },
        attempts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::record::{Attempt, FindingRecord, Made};
    use crate::matrix::samples;

    fn part(names: &[&str], planned: &[&str], pass: bool) -> Results {
        let cells = names
            .iter()
            .map(|name| {
                let mut cell = lost(name);
                cell.add([Attempt {
                    logs: Some("logs/x".into()),
                    findings: if pass {
                        vec![]
                    } else {
                        vec![FindingRecord {
                            kind: "hang".into(),
                            code: 5,
                            text: "x".into(),
                        }]
                    },
                    ..samples::passed()
                }]);
                cell
            })
            .collect();
        Results {
            format: 1,
            shard: Some("1/2".into()),
            made: vec![Made::default()],
            planned: planned.iter().map(|p| (*p).to_owned()).collect(),
            cells,
        }
    }

    const A: &str = "trn1/silicon/6.1/2.24.7.0";
    const B: &str = "trn2x16/qemu/6.12/own/info,all_devices";

    #[test]
    fn shards_become_one_in_the_order_of_the_plan() {
        let whole = join(vec![part(&[B], &[A, B], true), part(&[A], &[A, B], true)]).unwrap();
        let names: Vec<_> = whole.cells.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, [A, B]);
        assert_eq!(whole.count(Status::Passed), 2);
        assert_eq!((whole.exit_code(), whole.shard), (0, None));
    }

    #[test]
    fn a_missing_shard_is_no_success() {
        let whole = join(vec![part(&[A], &[A, B], true)]).unwrap();
        assert_eq!(whole.count(Status::NotRun), 1);
        let cell = &whole.cells[1];
        assert_eq!((cell.product.as_str(), cell.devices), ("trn2", 16));
        assert_eq!(cell.scenarios, "info,all_devices");
        assert!(cell.cause.as_deref().unwrap().contains("shard"));
        assert_eq!(whole.exit_code(), 2);
    }

    #[test]
    fn a_rerun_that_passes_does_not_hide_the_failure() {
        let whole = join(vec![part(&[A], &[A], false), part(&[A], &[A], true)]).unwrap();
        assert_eq!(whole.cells[0].status, Status::Flaky);
        assert_eq!(whole.cells[0].attempts.len(), 2);
        assert_eq!(whole.exit_code(), crate::matrix::FLAKY);
        let whole = join(vec![part(&[A], &[A], false), part(&[A], &[A], false)]).unwrap();
        assert_eq!(
            (whole.cells[0].status, whole.exit_code()),
            (Status::Failed, 1)
        );
    }

    #[test]
    fn files_read_back_and_logs_stay_where_they_are() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for (dir, name) in dirs.iter().zip([A, B]) {
            let text = serde_json::to_string(&part(&[name], &[A, B], false)).unwrap();
            std::fs::write(dir.path().join(RESULTS), text).unwrap();
        }
        let paths: Vec<_> = dirs.iter().map(|d| d.path().to_owned()).collect();
        let whole = directories(&paths).unwrap();
        let logs = whole.cells[1].attempts[0].logs.as_deref().unwrap();
        assert_eq!(Path::new(logs), dirs[1].path().join("logs/x"));
        assert!(directories(&[]).is_err());
        std::fs::write(dirs[0].path().join(RESULTS), "{}").unwrap();
        assert!(
            directories(&paths)
                .unwrap_err()
                .to_string()
                .contains("no results file")
        );
    }
}
