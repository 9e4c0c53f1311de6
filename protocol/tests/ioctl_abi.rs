//! The ABI against values that a C compiler produced from the real driver's interface.
use std::collections::BTreeMap;

use neuron_protocol::ioctl;

const C: &str = include_str!("ioctl_abi.txt");

fn lines() -> impl Iterator<Item = Vec<&'static str>> {
    C.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
}

#[test]
fn numbers_are_those_of_the_real_driver() {
    let ours: BTreeMap<_, _> = ioctl::requests()
        .map(|request| (request.name, request.request))
        .collect();
    let mut theirs = BTreeMap::new();
    for line in lines() {
        if let ["request", name, value] = line[..] {
            theirs.insert(
                name,
                u32::from_str_radix(value.trim_start_matches("0x"), 16).unwrap(),
            );
        }
    }
    assert_eq!(ours, theirs);
    assert_eq!(
        ioctl::DMA_QUEUE_COPY_START,
        0x8008_4e23,
        "the request the seed names"
    );
}

#[test]
fn layouts_are_those_of_the_real_driver() {
    type Fields = Vec<(usize, usize)>;
    let mut theirs: BTreeMap<&str, (usize, Fields)> = BTreeMap::new();
    let mut current = "";
    for line in lines() {
        match line[..] {
            ["struct", name, size] => {
                current = name;
                theirs.insert(name, (size.parse().unwrap(), Vec::new()));
            }
            ["request", ..] => {}
            [_, offset, size] => {
                theirs
                    .get_mut(current)
                    .unwrap()
                    .1
                    .push((offset.parse().unwrap(), size.parse().unwrap()));
            }
            _ => panic!("unreadable line {line:?}"),
        }
    }
    let ours: BTreeMap<&str, (usize, Fields)> = ioctl::layouts()
        .map(|layout| {
            let fields = layout
                .fields
                .iter()
                .filter(|field| !field.name.starts_with("pad_"));
            (
                layout.name,
                (
                    layout.size,
                    fields.map(|field| (field.offset, field.size)).collect(),
                ),
            )
        })
        .collect();
    assert_eq!(ours, theirs);
}

#[test]
fn each_request_has_its_own_name_and_value() {
    let mut seen = BTreeMap::new();
    for request in ioctl::requests() {
        assert_eq!(
            seen.insert(request.request, request.name),
            None,
            "{} repeats a value",
            request.name
        );
        assert_eq!(
            request.number(),
            u8::try_from(request.request & 0xff).unwrap()
        );
    }
}
