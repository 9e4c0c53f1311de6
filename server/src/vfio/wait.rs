//! How a device thread waits: in recvmsg(2) while its client keeps it busy, else in poll(2), unless it was told to look for
//! a while first.
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// How a device thread serves its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// How long after its last activity the thread goes on looking instead of blocking. Zero never spins.
    pub busy_poll: Duration,
}

/// A thread that waits for its client alone looks at everything else this often.
const LOOK_AROUND: Duration = Duration::from_millis(4);

/// Whether the client alone is worth waiting for. All times are since serving began.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// The client has sent something at the last occasion, and may do so again at once.
    lively: bool,
    /// The last wake-up.
    now: Duration,
    /// The last wake-up from a wait for everything.
    all: Duration,
}

impl Attention {
    /// The thread woke up from waiting for the client alone.
    pub(super) const fn on_client(&mut self, now: Duration, in_vain: bool) {
        self.now = now;
        self.lively = !in_vain;
    }

    /// The thread woke up from waiting for everything; `sent`: the client was among those who wanted something.
    pub(super) const fn on_all(&mut self, now: Duration, sent: bool) {
        self.now = now;
        self.all = now;
        self.lively = sent || self.lively;
    }

    /// Whether the thread may wait for the client alone, for some milliseconds.
    pub(super) fn may_be_on_client(&self) -> bool {
        self.lively && self.now.saturating_sub(self.all) < LOOK_AROUND
    }
}

/// Waits for descriptors.
#[derive(Debug)]
pub(super) struct Waiter {
    busy_poll: Duration,
    /// Look without blocking until then; `None` blocks.
    spin_until: Option<Instant>,
    calls: u64,
}

impl Waiter {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            busy_poll: settings.busy_poll,
            spin_until: None,
            calls: 0,
        }
    }

    /// Whether it blocks as soon as there is nothing to do.
    pub(super) const fn blocks(&self) -> bool {
        self.busy_poll.is_zero()
    }

    /// `poll` calls so far.
    pub(super) const fn calls(&self) -> u64 {
        self.calls
    }

    /// Returns when something is ready or `limit` is over; without a limit, when something is ready. A signal ends it
    /// early.
    ///
    /// # Errors
    /// poll(2) failed.
    pub(super) fn wait(
        &mut self,
        fds: &mut [PollFd<'_>],
        limit: Option<Duration>,
    ) -> Result<(), Errno> {
        let mut limit = limit;
        if let Some(until) = self.spin_until.take()
            && limit != Some(Duration::ZERO)
        {
            let started = Instant::now();
            let until = limit.map_or(until, |limit| until.min(started + limit));
            loop {
                if self.poll(fds, Some(Duration::ZERO))? {
                    self.active();
                    return Ok(());
                }
                let now = Instant::now();
                if now >= until {
                    limit = limit.map(|limit| limit.saturating_sub(now - started));
                    break;
                }
                std::hint::spin_loop();
            }
        }
        // No limit but zero at once: the function has work.
        if self.poll(fds, limit)? || limit == Some(Duration::ZERO) {
            self.active();
        }
        Ok(())
    }

    fn poll(&mut self, fds: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<bool, Errno> {
        self.calls += 1;
        let limit = limit.map(|limit| {
            Timespec::try_from(limit).unwrap_or(Timespec {
                tv_sec: 3600,
                tv_nsec: 0,
            })
        });
        match poll(fds, limit.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            // As if something were ready, so that nobody waits longer than asked.
            Err(Errno::INTR) => {
                for fd in fds {
                    fd.clear_revents();
                }
                Ok(true)
            }
            Err(errno) => Err(errno),
        }
    }

    fn active(&mut self) {
        if !self.busy_poll.is_zero() {
            self.spin_until = Some(Instant::now() + self.busy_poll);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, PollFlags, eventfd};

    use super::*;

    /// Waits twice for `limit`, with something ready the first time; returns the calls of the second.
    fn calls_after_activity(busy_poll: Duration, limit: Duration) -> u64 {
        let event = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let mut waiter = Waiter::new(Settings { busy_poll });
        let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)];
        waiter.wait(&mut fds, Some(limit)).unwrap();
        assert_eq!(fds[0].revents(), PollFlags::IN);
        rustix::io::read(&event, &mut [0; 8]).unwrap();
        let before = waiter.calls();
        let start = Instant::now();
        waiter.wait(&mut fds, Some(limit)).unwrap();
        assert!(start.elapsed() >= limit, "{:?}", start.elapsed());
        waiter.calls() - before
    }

    #[test]
    fn a_client_that_never_pauses_is_left_for_the_others_in_time() {
        let at = Duration::from_millis;
        let mut attention = Attention::default();
        assert!(!attention.may_be_on_client(), "nobody has sent anything");
        attention.on_all(at(100), true);
        for now in 100..104 {
            attention.on_client(at(now), false);
            assert!(attention.may_be_on_client());
        }
        attention.on_client(at(104), false);
        assert!(!attention.may_be_on_client(), "others have waited for 4 ms");
        // It was busy with something else for a while, and nobody wanted anything.
        attention.on_all(at(150), false);
        assert!(attention.may_be_on_client());
        attention.on_client(at(151), true);
        assert!(!attention.may_be_on_client(), "it has fallen silent");
        attention.on_all(at(152), false);
        assert!(!attention.may_be_on_client(), "it is still silent");
        attention.on_all(at(153), true);
        assert!(attention.may_be_on_client());
    }

    #[test]
    fn it_blocks_at_once_unless_told_otherwise() {
        assert_eq!(
            calls_after_activity(Duration::ZERO, Duration::from_millis(20)),
            1
        );
    }

    #[test]
    fn it_looks_for_as_long_as_told_and_then_blocks() {
        let limit = Duration::from_millis(60);
        assert!(calls_after_activity(Duration::from_millis(20), limit) > 2);
        // The limit holds while it looks, too.
        assert!(calls_after_activity(Duration::from_secs(3600), limit) > 2);
    }

    #[test]
    fn without_activity_it_stops_looking() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let busy_poll = Duration::from_secs(3600);
        let mut waiter = Waiter::new(Settings { busy_poll });
        let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)];
        for _ in 0..3 {
            waiter
                .wait(&mut fds, Some(Duration::from_millis(1)))
                .unwrap();
        }
        assert_eq!(waiter.calls(), 3);
    }
}
