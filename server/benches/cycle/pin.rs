//! Which CPUs client and servers run on. Left to the scheduler, one run has both on one CPU and the next has not, and a round
//! trip of the first takes a third of the time of the second.
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where client and servers are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// The client on one CPU, both servers on another, as a vCPU and a device would be.
    Apart,
    /// All on one.
    Together,
    /// Wherever the scheduler puts them.
    No,
}

impl Pin {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "apart" => Self::Apart,
            "together" => Self::Together,
            "no" => Self::No,
            _ => return None,
        })
    }

    /// Moves this thread to where servers belong; processes that it starts stay there.
    pub fn servers(self) {
        move_to(match self {
            Self::Apart => 1,
            Self::Together => 0,
            Self::No => return,
        });
    }

    /// Moves this thread to where the client belongs.
    pub fn client(self) {
        if self != Self::No {
            move_to(0);
        }
    }
}

/// To the `nth` of the CPUs that were allowed at the start, or the last.
fn move_to(nth: usize) {
    static ALLOWED: std::sync::OnceLock<Vec<usize>> = std::sync::OnceLock::new();
    let allowed = ALLOWED.get_or_init(|| {
        let set = sched_getaffinity(None).expect("CPUs");
        (0..CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .collect()
    });
    let mut set = CpuSet::new();
    if let Some(cpu) = allowed.get(nth).or(allowed.last()) {
        set.set(*cpu);
        sched_setaffinity(None, &set).expect("pin");
    }
}
