//! Which cells there are, which of them are wanted, and whose they are.
use anyhow::{Result, bail};
use glob::{MatchOptions, Pattern};
use neuron_protocol::generation::{Platform, Product};

use super::cell::Cell;
use super::drivers::Folder;

/// A named part of the matrix.
#[derive(Debug)]
pub struct Subset {
    /// Name.
    pub name: &'static str,
    /// Patterns of cell names.
    pub cells: &'static [&'static str],
}

/// What `--subset` knows.
///
/// `ci`: every product and platform once, where the lanes (tests/lanes.rs) do not go already, in under three minutes.
pub const SUBSETS: &[Subset] = &[Subset {
    name: "ci",
    cells: &[
        "trn1/emulator/6.1/*",
        "inf2/emulator/6.12/*",
        "trn2/silicon/6.12/*",
        "trn3/emulator/6.12/*",
    ],
}];

/// The dimensions beside the drivers.
#[derive(Clone, Debug)]
pub struct Dimensions<'a> {
    /// Device models.
    pub products: &'a [Product],
    /// Platforms.
    pub platforms: &'a [Platform],
    /// Scenario sets, each one boot.
    pub scenarios: &'a [String],
    /// Devices in each guest.
    pub devices: u8,
}

/// Every cell, in an order that depends on the input alone.
pub fn enumerate(folders: &[Folder], dimensions: &Dimensions<'_>) -> Vec<Cell> {
    let mut cells = Vec::new();
    for folder in folders {
        for driver in &folder.drivers {
            for product in dimensions.products {
                for platform in dimensions.platforms {
                    for scenarios in dimensions.scenarios {
                        cells.push(Cell {
                            kernel: folder.kernel.clone(),
                            driver: driver.clone(),
                            product: *product,
                            platform: *platform,
                            devices: dimensions.devices,
                            scenarios: scenarios.clone(),
                        });
                    }
                }
            }
        }
    }
    cells
}

/// Keeps the cells that a pattern names; a `*` reaches across slashes.
///
/// # Errors
/// A pattern that is none, or that names no cell.
pub fn select(cells: Vec<Cell>, patterns: &[String]) -> Result<Vec<Cell>> {
    if patterns.is_empty() {
        return Ok(cells);
    }
    let mut wanted = vec![false; cells.len()];
    for text in patterns {
        let Ok(pattern) = Pattern::new(text) else {
            bail!(
                "--cell {text:?} is not a pattern: * and ? stand for other characters, [ab] for one of them"
            );
        };
        let options = MatchOptions::new();
        let mut any = false;
        for (cell, wanted) in cells.iter().zip(&mut wanted) {
            // Whoever names no scenarios means all that there are.
            if [cell.name(), cell.place()]
                .iter()
                .any(|name| name == text || pattern.matches_with(name, options))
            {
                *wanted = true;
                any = true;
            }
        }
        if !any {
            bail!(
                "--cell {text:?} names none of the {} cells; --list shows them",
                cells.len()
            );
        }
    }
    let mut wanted = wanted.into_iter();
    Ok(cells
        .into_iter()
        .filter(|_| wanted.next().unwrap_or(false))
        .collect())
}

/// Keeps the cells of a subset.
///
/// # Errors
/// No such subset.
pub fn subset(cells: Vec<Cell>, name: &str) -> Result<Vec<Cell>> {
    let Some(subset) = SUBSETS.iter().find(|s| s.name == name) else {
        let known: Vec<_> = SUBSETS.iter().map(|s| s.name).collect();
        bail!("--subset {name:?} is unknown; known: {}", known.join(", "));
    };
    let patterns: Vec<Pattern> = subset
        .cells
        .iter()
        .filter_map(|text| Pattern::new(text).ok())
        .collect();
    Ok(cells
        .into_iter()
        .filter(|cell| patterns.iter().any(|p| p.matches(&cell.name())))
        .collect())
}

/// `I/N`, I from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub index: u32,
    /// How many there are.
    pub count: u32,
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .split_once('/')
            .and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((index, count)) if 1 <= index && index <= count && count <= 10_000 => {
                Ok(Self { index, count })
            }
            _ => Err("write I/N with I from 1 to N, such as 1/4".to_owned()),
        }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// The cells of one shard, in their old order. Every machine must be given the same cells: longest first, each goes to
/// the shard with the least to do, so that loads differ by one cell at most.
pub fn shard(cells: Vec<Cell>, shard: Shard) -> Vec<Cell> {
    let cost = |cell: &Cell| {
        u64::from(if cell.unsupported().is_some() {
            0
        } else {
            cell.cost()
        })
    };
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_by_cached_key(|at| (std::cmp::Reverse(cost(&cells[*at])), cells[*at].name()));
    // Time first, then the number of cells: those that are not run cost nothing, and one shard need not list them all.
    let mut loads: Vec<(u64, usize)> = (0..shard.count).map(|_| (0, 0)).collect();
    let mut owner = vec![0; cells.len()];
    for at in order {
        let least = (0..loads.len()).min_by_key(|n| loads[*n]).unwrap_or(0);
        loads[least].0 += cost(&cells[at]);
        loads[least].1 += 1;
        owner[at] = least;
    }
    let mine = usize::try_from(shard.index - 1).unwrap_or(usize::MAX);
    let mut owner = owner.into_iter();
    cells
        .into_iter()
        .filter(|_| owner.next() == Some(mine))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::matrix::cell::{ALL_SCENARIOS, Driver, KernelChoice};
    use crate::matrix::drivers;

    fn grid() -> Vec<Cell> {
        let driver = |label: &str, ids: &[u16]| {
            Arc::new(Driver {
                label: label.into(),
                file: Some(label.into()),
                pci_ids: ids.iter().copied().collect(),
            })
        };
        let old = [0x7164, 0x7264, 0x7364];
        let new = [0x7164, 0x7264, 0x7364, 0x7564, 0x7565];
        let folders: Vec<Folder> = ["6.1", "6.12"]
            .map(|name| Folder {
                kernel: KernelChoice {
                    name: name.into(),
                    source: name.into(),
                },
                drivers: vec![
                    driver("2.19.64.0", &old),
                    driver("2.24.7.0", &old),
                    driver("2.25.4.0", &new),
                ],
            })
            .to_vec();
        enumerate(
            &folders,
            &Dimensions {
                products: &Product::ALL,
                platforms: &Platform::ALL,
                scenarios: &[ALL_SCENARIOS.to_owned()],
                devices: 1,
            },
        )
    }

    fn names(cells: &[Cell]) -> BTreeSet<String> {
        cells.iter().map(Cell::name).collect()
    }

    #[test]
    fn every_combination_is_there_once_by_a_name_of_its_own() {
        let cells = grid();
        assert_eq!(cells.len(), 2 * 3 * 4 * 3);
        assert_eq!(names(&cells).len(), cells.len());
        let unsupported: Vec<_> = cells.iter().filter(|c| c.unsupported().is_some()).collect();
        // trn3 with the two older drivers, on two kernels and three platforms: listed, not left out.
        assert_eq!(unsupported.len(), 2 * 2 * 3);
        assert!(unsupported.iter().all(|c| c.product == Product::Trn3));
    }

    #[test]
    fn patterns_pick_cells_across_slashes() {
        let pick = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
            select(grid(), &patterns).map(|cells| cells.len())
        };
        assert_eq!(pick(&["trn1/silicon/6.1/2.24.7.0"]).unwrap(), 1);
        assert_eq!(pick(&["trn1/*"]).unwrap(), 18);
        assert_eq!(pick(&["*/6.12/*", "*/6.12/2.25.4.0"]).unwrap(), 36);
        assert_eq!(pick(&["trn[12]/qemu/6.1/2.2?.4.0"]).unwrap(), 2);
        assert_eq!(pick(&[]).unwrap(), 72);
        let mut cells = grid();
        for cell in &mut cells {
            cell.scenarios = "info".into();
        }
        for text in ["trn1/qemu/6.1/2.24.7.0", "trn1/qemu/6.1/2.24.7.0/info"] {
            assert_eq!(
                select(cells.clone(), &[text.to_owned()]).unwrap().len(),
                1,
                "{text}"
            );
        }
        assert!(
            pick(&["trn1/*", "trn9/*"])
                .unwrap_err()
                .to_string()
                .contains("trn9")
        );
        assert!(pick(&["[a"]).unwrap_err().to_string().contains("pattern"));
    }

    #[test]
    fn shards_are_the_whole_disjoint_and_balanced() {
        let all = names(&grid());
        for count in [1, 2, 3, 5, 7, 16, 100] {
            let shards: Vec<Vec<Cell>> = (1..=count)
                .map(|index| shard(grid(), Shard { index, count }))
                .collect();
            let total: usize = shards.iter().map(Vec::len).sum();
            let union: BTreeSet<String> = shards.iter().flat_map(|s| names(s)).collect();
            assert_eq!(total, all.len(), "{count}: a cell has two shards, or none");
            assert_eq!(union, all, "{count}");
            let load = |cells: &Vec<Cell>| -> u32 {
                cells
                    .iter()
                    .filter(|c| c.unsupported().is_none())
                    .map(Cell::cost)
                    .sum()
            };
            let longest = grid().iter().map(Cell::cost).max().unwrap();
            let loads: Vec<u32> = shards.iter().map(load).collect();
            let gap = loads.iter().max().unwrap() - loads.iter().min().unwrap();
            assert!(gap <= longest, "{count}: {loads:?}");
        }
    }

    #[test]
    fn shards_do_not_depend_on_the_order_of_the_cells() {
        let at = Shard { index: 2, count: 5 };
        let mut reversed = grid();
        reversed.reverse();
        assert_eq!(names(&shard(grid(), at)), names(&shard(reversed, at)));
    }

    #[test]
    fn shard_is_one_of_n() {
        assert_eq!("2/4".parse(), Ok(Shard { index: 2, count: 4 }));
        for bad in ["0/4", "5/4", "1", "1/0", "a/b", "1/99999", "-1/2"] {
            assert!(bad.parse::<Shard>().is_err(), "{bad}");
        }
    }

    #[test]
    fn subsets_name_cells_that_exist() {
        let own = enumerate(
            &drivers::own(),
            &Dimensions {
                products: &Product::ALL,
                platforms: &Platform::ALL,
                scenarios: &[ALL_SCENARIOS.to_owned()],
                devices: 1,
            },
        );
        for known in SUBSETS {
            let found = subset(own.clone(), known.name).unwrap();
            assert_eq!(found.len(), known.cells.len(), "{}", known.name);
        }
        assert!(
            subset(own, "nightly")
                .unwrap_err()
                .to_string()
                .contains("ci")
        );
    }
}
