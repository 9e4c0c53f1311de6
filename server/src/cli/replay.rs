//! `replay`: the device of a recording, again and compared.
use std::path::PathBuf;

use clap::Args;

use super::exit::Exit;
use super::record::create;
use super::size;
use crate::record::entry::End;
use crate::record::file::Tail;
use crate::record::{Outcome, Replay, ReplayError};

/// Options of `replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// The recording, as --record made it
    file: PathBuf,

    /// Record anew what this version of the device does with the same inputs, instead of comparing: for when the device has
    /// changed on purpose. It must still read the same memory
    #[arg(long, value_name = "NEW")]
    rewrite: Option<PathBuf>,

    /// Say nothing but what is wrong
    #[arg(long, short)]
    quiet: bool,
}

impl ReplayArgs {
    /// Replays and says how it went.
    pub fn run(self) -> Exit {
        let name = self.file.display();
        let file = match std::fs::read(&self.file) {
            Ok(file) => file,
            Err(error) => {
                eprintln!("error: {name}: {error}");
                return Exit::Failed;
            }
        };
        let replay = match &self.rewrite {
            None => Replay::new(file),
            Some(path) => match create(path) {
                Ok(out) => Replay::rewriting(file, out),
                Err(error) => {
                    eprintln!("error: --rewrite {error}");
                    return Exit::Failed;
                }
            },
        };
        let replay = match replay {
            Ok(replay) => replay,
            Err(error) => {
                eprintln!("error: {name}: {error}");
                return Exit::Failed;
            }
        };
        let header = replay.header().clone();
        match replay.run() {
            Ok(outcome) => {
                if !self.quiet {
                    let text = summary(&outcome, &header, self.rewrite.is_some());
                    super::print(&format!("{name}: {text}"));
                }
                Exit::Ok
            }
            Err(error @ ReplayError::Diverged(_)) => {
                eprintln!("error: {name}: {error}");
                if header.version != env!("CARGO_PKG_VERSION") {
                    eprintln!(
                        "note: version {} recorded it, this is {}",
                        header.version,
                        env!("CARGO_PKG_VERSION")
                    );
                }
                eprintln!(
                    "If the device has changed on purpose: neuron-vfio-user replay --rewrite NEW {name}"
                );
                Exit::Failed
            }
            Err(error) => {
                eprintln!("error: {name}: {error}");
                Exit::Failed
            }
        }
    }
}

fn summary(outcome: &Outcome, header: &crate::record::Header, rewritten: bool) -> String {
    let counts = outcome.counts;
    let verdict = if rewritten { "rewritten" } else { "the same" };
    let ratio = outcome.recorded.as_secs_f64() / outcome.elapsed.as_secs_f64().max(1e-9);
    let mut text = format!(
        "{verdict}: {} on platform {}\n  {} calls, {} replies, {} events, {} read and {} written bytes of memory in {} entries\n  \
         {:.3} s of device time in {:.3} s: {ratio:.0} times as fast as it was recorded\n",
        header.product,
        header.platform,
        counts.calls,
        counts.replies,
        counts.events,
        size::exact(counts.read),
        size::exact(counts.written),
        counts.entries,
        outcome.recorded.as_secs_f64(),
        outcome.elapsed.as_secs_f64(),
    );
    let end = match (outcome.end, outcome.tail) {
        (Some(End::Stopped), _) => "",
        (Some(End::Limit), _) => "  the recording ends at --record-limit\n",
        (Some(End::Slow), _) => "  the recording ends early: its disk was too slow\n",
        (Some(End::Asked), _) => "  the recording was ended by order\n",
        (None, Tail::Cut { .. }) => {
            "  the file ends within a block, which a kill or crash leaves: replayed up to there\n"
        }
        (None, Tail::Whole) => "  the recording has no end mark, as after a kill\n",
    };
    text.push_str(end);
    text
}
