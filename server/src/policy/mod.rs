//! What may change the outcome of what a device does: asked at named points, answered with a verdict.
//!
//! Without a policy every verdict is [`Verdict::Proceed`] and the points cost a branch.
pub mod adversary;
pub mod fault;
mod operate;
mod point;
pub mod timing;
mod verdict;

use std::fmt;
use std::time::Duration;

pub use adversary::Adversary;
pub use fault::{Faults, Ground};
pub use operate::{MAX_NOTIFICATION, NotificationBlock, Notify, Operate, Posted};
pub use point::Point;
pub use timing::Timing;
pub use verdict::{Corruption, Tear, Verdict};

/// Something that decides.
pub trait Policy: Send {
    /// Decides at a point. `now` is device time.
    fn judge(&mut self, now: Duration, point: &Point) -> Verdict;
}

/// How a device is lost to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Gone from the bus.
    Removed,
    /// The connection is to be closed.
    Disconnected,
}

/// The policies of a device, in the order in which they are asked.
#[derive(Default)]
pub struct Policies {
    faults: Option<Box<Faults>>,
    ground: Ground,
    list: Vec<Box<dyn Policy>>,
    timing: Option<Timing>,
    loss: Option<Loss>,
    adversary: Option<Box<Adversary>>,
}

impl Policies {
    /// Adds a policy, to be asked last.
    pub fn add(&mut self, policy: Box<dyn Policy>) {
        self.list.push(policy);
    }

    /// Says what faults rest on that come later.
    pub const fn set_ground(&mut self, ground: Ground) {
        self.ground = ground;
    }

    /// What faults rest on.
    pub const fn ground(&self) -> Ground {
        self.ground
    }

    /// Installs faults on purpose, which are asked first; `None` is none.
    pub fn set_faults(&mut self, faults: Option<Faults>) {
        self.faults = faults.map(Box::new);
    }

    /// The faults on purpose.
    pub fn faults(&self) -> Option<&Faults> {
        self.faults.as_deref()
    }

    /// The faults on purpose, or new ones.
    pub fn faults_or(&mut self, new: impl FnOnce() -> Faults) -> &mut Faults {
        self.faults.get_or_insert_with(|| Box::new(new()))
    }

    /// Nobody would be asked.
    pub const fn is_empty(&self) -> bool {
        self.list.is_empty() && self.faults.is_none()
    }

    /// Asks all of them, so that each sees everything. The first that wants more than a delay has its way, else the
    /// longest delay.
    pub fn judge(&mut self, now: Duration, point: Point) -> Verdict {
        if self.is_empty() {
            return Verdict::Proceed;
        }
        self.ask(now, &point)
    }

    #[inline(never)]
    fn ask(&mut self, now: Duration, point: &Point) -> Verdict {
        let fault = self.faults.as_mut();
        let fault = fault.map_or(Verdict::Proceed, |faults| faults.judge(now, point));
        let verdict = self
            .list
            .iter_mut()
            .map(|policy| policy.judge(now, point))
            .fold(fault, stronger);
        match verdict {
            Verdict::Remove => self.loss = Some(Loss::Removed),
            Verdict::Disconnect => self.loss = Some(Loss::Disconnected),
            other => return other,
        }
        // The thing itself is lost with the device.
        Verdict::Drop
    }

    /// Whether the device is lost.
    pub const fn loss(&self) -> Option<Loss> {
        self.loss
    }

    /// It is there again.
    pub const fn restore(&mut self) {
        self.loss = None;
    }

    /// Says how long work takes in model time; `None` is no time at all.
    pub const fn set_timing(&mut self, timing: Option<Timing>) {
        self.timing = timing;
    }

    /// Lets an adversary decide what hardware is free to do.
    pub fn set_adversary(&mut self, adversary: Adversary) {
        self.adversary = Some(Box::new(adversary));
    }

    /// The adversary, if there is one.
    pub fn adversary(&self) -> Option<&Adversary> {
        self.adversary.as_deref()
    }

    /// The adversary, to be asked.
    pub fn adversary_mut(&mut self) -> Option<&mut Adversary> {
        self.adversary.as_deref_mut()
    }

    /// How long work takes.
    pub const fn timing(&self) -> Option<Timing> {
        self.timing
    }
}

fn stronger(first: Verdict, second: Verdict) -> Verdict {
    match (first, second) {
        (Verdict::Proceed, other) | (other, Verdict::Proceed) => other,
        (Verdict::Delay(first), Verdict::Delay(second)) => Verdict::Delay(first.max(second)),
        (Verdict::Delay(_), other) => other,
        (first, _) => first,
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "faults {:?}, {} other policies, timing {:?}, loss {:?}",
            self.faults,
            self.list.len(),
            self.timing,
            self.loss
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Says(Verdict);

    impl Policy for Says {
        fn judge(&mut self, _now: Duration, _point: &Point) -> Verdict {
            self.0
        }
    }

    #[test]
    fn the_first_that_wants_more_than_a_delay_has_its_way() {
        let (short, long) = (
            Verdict::Delay(Duration::from_millis(1)),
            Verdict::Delay(Duration::from_millis(2)),
        );
        for (list, outcome) in [
            (vec![], Verdict::Proceed),
            (vec![Verdict::Proceed, short], short),
            (vec![long, short], long),
            (
                vec![short, Verdict::Drop, Verdict::Fail, long],
                Verdict::Drop,
            ),
        ] {
            let mut policies = Policies::default();
            for verdict in list {
                policies.add(Box::new(Says(verdict)));
            }
            let point = Point::Reset { map: None };
            assert_eq!(policies.judge(Duration::ZERO, point), outcome);
            assert_eq!(policies.loss(), None);
        }
    }

    #[test]
    fn a_lost_device_stays_lost_until_it_is_restored() {
        let mut policies = Policies::default();
        policies.add(Box::new(Says(Verdict::Remove)));
        let verdict = policies.judge(Duration::ZERO, Point::Reset { map: None });
        assert_eq!(
            (verdict, policies.loss()),
            (Verdict::Drop, Some(Loss::Removed))
        );
        policies.restore();
        assert_eq!(policies.loss(), None);
    }
}
