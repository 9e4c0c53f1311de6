//! Posted metrics: what [`Command::PostToCw`](super::Command::PostToCw) carries (facts §5.5).

/// Most bytes of metrics in one post: the data window they are put into (facts §5.5).
pub const MAX_POST: usize = super::DATA_WINDOW_SIZE;

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric<'a> {
    /// What it measures; the driver's tables give the numbers their meaning.
    pub id: u8,
    /// Its value as ASCII text, as posted: not checked.
    pub value: &'a [u8],
}

/// A metric that says to be longer than what is left of the post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metric {id} says {length} bytes, {left} are left of the post")]
pub struct TruncatedMetric {
    /// Its number.
    pub id: u8,
    /// Its length field.
    pub length: u8,
    /// Bytes behind the length field.
    pub left: usize,
}

/// The metrics in a post: `{u8 id, u8 length, text}` each, up to the end or to id and length 0, with which the
/// driver's buffer is padded. A truncated one is the last.
#[derive(Clone, Debug)]
pub struct Metrics<'a>(&'a [u8]);

impl<'a> Metrics<'a> {
    /// Reads the metrics in `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for Metrics<'a> {
    type Item = Result<Metric<'a>, TruncatedMetric>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&id, rest) = core::mem::take(&mut self.0).split_first()?;
        let Some((&length, rest)) = rest.split_first() else {
            // One stray byte: padding if 0.
            return (id != 0).then_some(Err(TruncatedMetric {
                id,
                length: 0,
                left: 0,
            }));
        };
        if id == 0 && length == 0 {
            return None;
        }
        let Some((value, rest)) = rest.split_at_checked(length.into()) else {
            return Some(Err(TruncatedMetric {
                id,
                length,
                left: rest.len(),
            }));
        };
        self.0 = rest;
        Some(Ok(Metric { id, value }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_end_at_padding_or_at_the_end() {
        let metric = |id, value| Some(Ok(Metric { id, value }));
        let mut metrics = Metrics::new(b"\x0c\x03i-0\x38\x00\x07\x011\0\0\x01\x01x");
        assert_eq!(metrics.next(), metric(12, b"i-0"));
        assert_eq!(metrics.next(), metric(56, b""));
        assert_eq!(metrics.next(), metric(7, b"1"));
        assert_eq!(metrics.next(), None);
        assert_eq!(Metrics::new(b"").next(), None);
        assert_eq!(Metrics::new(b"\x01\x01y").count(), 1);
    }

    #[test]
    fn a_truncated_metric_is_named_and_the_last() {
        let mut metrics = Metrics::new(b"\x01\x01a\x09\x05bcd");
        assert!(matches!(metrics.next(), Some(Ok(_))));
        let error = TruncatedMetric {
            id: 9,
            length: 5,
            left: 3,
        };
        assert_eq!(metrics.next(), Some(Err(error)));
        assert_eq!(metrics.next(), None);
        assert_eq!(Metrics::new(b"\x09").count(), 1);
    }
}
