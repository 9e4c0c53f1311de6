//! Writes that a policy puts off: their descriptors are done, their bytes land later.
use std::time::Duration;

/// Most writes put off at a time, and their bytes together.
const MAX_WRITES: usize = 64;
const MAX_BYTES: usize = 4 << 20;

/// When it lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this device time.
    At(Duration),
    /// This much after its queue's next marker.
    BehindMarker(Duration),
}

/// A write put off.
#[derive(Debug)]
pub struct LateWrite {
    /// Engine number.
    pub engine: u8,
    /// Queue number.
    pub queue: u8,
    /// When.
    pub when: When,
    /// To, as the engine sees it.
    pub address: u64,
    /// What.
    pub data: Vec<u8>,
}

/// The writes put off on a device, in order.
#[derive(Debug, Default)]
pub struct LateWrites {
    list: Vec<LateWrite>,
    bytes: usize,
}

impl LateWrites {
    /// Puts a write off.
    ///
    /// # Errors
    /// Too many are: it is the caller's again.
    pub fn put_off(&mut self, write: LateWrite) -> Result<(), LateWrite> {
        let bytes = self.bytes.saturating_add(write.data.len());
        if self.list.len() >= MAX_WRITES || bytes > MAX_BYTES {
            return Err(write);
        }
        self.bytes = bytes;
        self.list.push(write);
        Ok(())
    }

    /// The marker of a queue has landed.
    pub fn marker(&mut self, engine: u8, queue: u8, now: Duration) {
        for write in &mut self.list {
            if (write.engine, write.queue) == (engine, queue)
                && let When::BehindMarker(by) = write.when
            {
                write.when = When::At(now.saturating_add(by));
            }
        }
    }

    /// The first whose time has come.
    pub fn due(&mut self, now: Duration) -> Option<LateWrite> {
        let due = |write: &LateWrite| matches!(write.when, When::At(at) if at <= now);
        let write = self.list.remove(self.list.iter().position(due)?);
        self.bytes = self.bytes.saturating_sub(write.data.len());
        Some(write)
    }

    /// When the next is due.
    pub fn next(&self) -> Option<Duration> {
        let at = |write: &LateWrite| match write.when {
            When::At(at) => Some(at),
            When::BehindMarker(_) => None,
        };
        self.list.iter().filter_map(at).min()
    }

    /// Forgets those of the queues chosen.
    pub fn forget(&mut self, mut chosen: impl FnMut(u8, u8) -> bool) {
        self.list.retain(|write| !chosen(write.engine, write.queue));
        self.bytes = self.list.iter().map(|write| write.data.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(queue: u8, when: When, len: usize) -> LateWrite {
        LateWrite {
            engine: 0,
            queue,
            when,
            address: 0,
            data: vec![0; len],
        }
    }

    #[test]
    fn writes_wait_for_their_time_or_their_queues_marker() {
        let ms = Duration::from_millis;
        let mut late = LateWrites::default();
        late.put_off(write(0, When::At(ms(5)), 4)).unwrap();
        late.put_off(write(1, When::BehindMarker(ms(1)), 4))
            .unwrap();
        assert_eq!(late.next(), Some(ms(5)));
        assert!(late.due(ms(4)).is_none());
        late.marker(0, 0, ms(1));
        assert!(late.due(ms(4)).is_none());
        late.marker(0, 1, ms(1));
        assert_eq!(late.next(), Some(ms(2)));
        assert_eq!(late.due(ms(6)).unwrap().queue, 0);
        assert_eq!(late.due(ms(6)).unwrap().queue, 1);
        assert_eq!((late.next(), late.bytes), (None, 0));
    }

    #[test]
    fn they_are_bounded_and_resets_forget_them() {
        let mut late = LateWrites::default();
        for _ in 0..MAX_WRITES {
            late.put_off(write(3, When::At(Duration::ZERO), 1)).unwrap();
        }
        assert!(late.put_off(write(4, When::At(Duration::ZERO), 1)).is_err());
        late.forget(|_, queue| queue == 3);
        for _ in 0..MAX_BYTES >> 16 {
            late.put_off(write(4, When::At(Duration::MAX), 1 << 16))
                .unwrap();
        }
        assert!(late.put_off(write(4, When::At(Duration::MAX), 1)).is_err());
    }
}
