//! The picture: a line about the source, the devices, and the rings and events of the chosen one.
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, StatefulWidget, Table, TableState, Widget};

use super::state::{Answer, Rates, State};
use crate::observe::render;
use crate::observe::report::{DeviceReport, QueueReport, RingReport, Wait};

/// Cells of a ring's bar.
const BAR: u16 = 16;
/// Queues that a plain frame shows.
const PLAIN_QUEUES: usize = 16;
/// Events that a plain frame shows.
const PLAIN_EVENTS: usize = 12;
/// Columns of a plain frame: a CI log breaks lines later than that.
const PLAIN_WIDTH: u16 = 132;

const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
const HEAD: Style = Style::new().fg(Color::Cyan);
const BAD: Style = Style::new().fg(Color::Red);
const BUSY: Style = Style::new().fg(Color::Yellow);
const QUIET: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws all of it into `area`, however small: what does not fit is left out from below.
pub fn draw(state: &State, area: Rect, buffer: &mut Buffer) {
    let devices = state.devices().len();
    let queues = chosen(state).map_or(0, |report| report.queues.len());
    draw_in(state, split(area, devices, queues), buffer);
}

fn draw_in(state: &State, areas: [Rect; 4], buffer: &mut Buffer) {
    let [top, table, rings, events] = areas;
    headline(state).render(top, buffer);
    device_table(state, table, buffer);
    match state.devices().get(state.chosen()) {
        Some(Answer::Report(report)) => {
            ring_table(report, rings, buffer);
            event_lines(report, events, buffer);
        }
        Some(Answer::Silent { error }) => Line::styled(error, BAD).render(rings, buffer),
        None => {}
    }
}

/// One frame as text, as high as needed.
pub fn plain(state: &State) -> String {
    let queues = chosen(state).map_or(0, |report| report.queues.len().min(PLAIN_QUEUES));
    let events = chosen(state).map_or(0, |report| merged(report).len().min(PLAIN_EVENTS));
    let heights = [1, state.devices().len() + 1, queues + 1, events + 1];
    let mut y = 0;
    let areas = heights.map(|height| {
        let height = u16::try_from(height).unwrap_or(u16::MAX);
        let part = Rect::new(0, y, PLAIN_WIDTH, height);
        y = y.saturating_add(height);
        part
    });
    let area = Rect::new(0, 0, PLAIN_WIDTH, y);
    let mut buffer = Buffer::empty(area);
    draw_in(state, areas, &mut buffer);
    let mut text = String::new();
    for y in area.rows().map(|row| row.y) {
        let line: String = (0..area.width).map(|x| buffer[(x, y)].symbol()).collect();
        text += line.trim_end();
        text.push('\n');
    }
    while text.ends_with("\n\n") {
        text.pop();
    }
    text
}

fn chosen(state: &State) -> Option<&DeviceReport> {
    match state.devices().get(state.chosen())? {
        Answer::Report(report) => Some(report),
        Answer::Silent { .. } => None,
    }
}

/// The parts from above: each has what it needs as long as the ones below keep something.
fn split(area: Rect, devices: usize, queues: usize) -> [Rect; 4] {
    let lines = |count: usize| u16::try_from(count + 1).unwrap_or(u16::MAX);
    let left = area.height.saturating_sub(1);
    // At least the chosen device with its heading; no more than a half if there is something else to show.
    let table = lines(devices).min((left / 2).max(2)).min(left);
    let left = left - table;
    let rings = lines(queues).min((left * 2 / 3).max(2)).min(left);
    Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(table),
        Constraint::Length(rings),
        Constraint::Fill(1),
    ])
    .areas(area)
}

fn headline(state: &State) -> Line<'_> {
    let count = state.devices().len();
    let mut line = Line::default();
    if let Some((why, time)) = state.lost() {
        let text = format!(
            "no answer for {} s ({why}); what is below is old, asking again  ",
            time.as_secs()
        );
        line.push_span(Span::styled(text, BAD));
    }
    line.push_span(Span::styled(state.source.clone(), TITLE));
    let text = format!(
        "  {count} device{}  q: quit, up and down: choose",
        if count == 1 { "" } else { "s" }
    );
    line.push_span(Span::styled(text, QUIET));
    line
}

/// A number that fits into six columns.
fn short(number: u64) -> String {
    match number {
        0..=99_999 => number.to_string(),
        100_000..=9_999_999 => format!("{}k", number / 1_000),
        10_000_000..=9_999_999_999 => format!("{}M", number / 1_000_000),
        _ => format!("{}G", number / 1_000_000_000),
    }
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn device_table(state: &State, area: Rect, buffer: &mut Buffer) {
    let rows = state.devices().iter().enumerate().map(|(index, answer)| {
        let Answer::Report(report) = answer else {
            return Row::new(vec![Cell::from("does not answer")]).style(BAD);
        };
        device_row(report, state.rates(index))
    });
    let widths = [
        Constraint::Length(4),
        Constraint::Length(13),
        Constraint::Length(9),
        Constraint::Length(12),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(11),
        Constraint::Length(7),
        Constraint::Fill(1),
    ];
    let titles = [
        "", "device", "guest", "bytes/s", "batch/s", "descr/s", "bell/s", "bytes", "errors",
    ];
    let titles = titles.map(|title| {
        if matches!(title, "" | "device" | "guest") {
            Cell::from(title)
        } else {
            right(title.to_owned())
        }
    });
    let titles = titles.into_iter().chain([Cell::from("state")]);
    let table = Table::new(rows, widths)
        .header(Row::new(titles).style(HEAD))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::default().with_selected(state.chosen());
    StatefulWidget::render(table, area, buffer, &mut selected);
}

fn device_row(report: &DeviceReport, rates: Option<Rates>) -> Row<'static> {
    let rate = |value: fn(&Rates) -> u64, words: fn(u64) -> String| {
        right(
            rates
                .as_ref()
                .map_or_else(|| "-".to_owned(), |rates| words(value(rates))),
        )
    };
    let busy = report
        .queues
        .iter()
        .filter(|queue| !matches!(queue.wait, Wait::Nothing | Wait::M2sDoorbell))
        .count();
    let (word, style) = match (report.aborted.len(), busy) {
        (0, 0) => ("idle".to_owned(), Style::new()),
        (0, 1) => ("1 queue at work".to_owned(), BUSY),
        (0, busy) => (format!("{busy} queues at work"), BUSY),
        (1, _) => (format!("engine {} is aborted", report.aborted[0].0), BAD),
        (aborted, _) => (format!("{aborted} engines are aborted"), BAD),
    };
    Row::new([
        Cell::from(format!("nd{}", report.routing_id)),
        Cell::from(format!("{}/{}", report.product, report.platform)),
        Cell::from(if report.connected {
            "connected"
        } else {
            "none"
        }),
        rate(|rates| rates.bytes, render::bytes),
        rate(|rates| rates.batches, short),
        rate(|rates| rates.descriptors, short),
        rate(|rates| rates.doorbells, short),
        right(render::bytes(report.counters.bytes)),
        right(short(report.counters.errors)),
        Cell::from(Span::styled(word, style)),
    ])
}

/// Where head and tail are in the ring, and the work between them.
fn bar(ring: &RingReport) -> String {
    if ring.length == 0 {
        return " ".repeat(BAR.into());
    }
    let cell = |index: u32| {
        let at = u64::from(index) * u64::from(BAR) / u64::from(ring.length);
        u16::try_from(at).unwrap_or(BAR).min(BAR - 1)
    };
    let (head, tail) = (cell(ring.head), cell(ring.tail));
    let is_work = |at: u16| {
        if ring.outstanding == 0 {
            false
        } else if ring.head < ring.tail {
            (head..=tail).contains(&at)
        } else {
            at >= head || at <= tail
        }
    };
    (0..BAR)
        .map(|at| match (at == head, is_work(at)) {
            (true, _) => '\u{25cf}',
            (false, true) => '\u{2588}',
            (false, false) => '\u{b7}',
        })
        .collect()
}

fn ring_cells(ring: &RingReport) -> [Cell<'static>; 2] {
    if ring.length == 0 {
        return [Cell::from("no ring"), Cell::from("")];
    }
    let text = format!(
        "{:>5} {:>5} /{:<5} {:>5}",
        ring.head, ring.tail, ring.length, ring.outstanding
    );
    [Cell::from(text), Cell::from(bar(ring))]
}

fn ring_table(report: &DeviceReport, area: Rect, buffer: &mut Buffer) {
    let heading = " head  tail /size   left";
    let titles = ["queue", heading, "m2s", heading, "s2m", "waits for"];
    let rows = report.queues.iter().map(ring_row);
    let widths = [
        Constraint::Length(7),
        Constraint::Length(24),
        Constraint::Length(BAR),
        Constraint::Length(24),
        Constraint::Length(BAR),
        Constraint::Fill(1),
    ];
    let table = Table::new(rows, widths)
        .header(Row::new(titles).style(HEAD))
        .column_spacing(1);
    Widget::render(table, area, buffer);
}

fn ring_row(queue: &QueueReport) -> Row<'static> {
    let style = match queue.wait {
        Wait::Nothing | Wait::M2sDoorbell => Style::new(),
        Wait::Turn | Wait::Time { .. } => BUSY,
        _ => BAD,
    };
    let [m2s, m2s_bar] = ring_cells(&queue.m2s);
    let [s2m, s2m_bar] = ring_cells(&queue.s2m);
    let name = Cell::from(format!("e{}.q{}", queue.engine, queue.queue));
    // The rest of the sentence is what `ctl status` is for.
    let words = render::wait(&queue.wait);
    let words = words.split([':', '(']).next().unwrap_or("").trim();
    let age = queue.last_doorbell.as_ref().and_then(|bell| bell.age_us);
    let age = age.map_or_else(String::new, |us| {
        format!(", rung {} ago", render::micros(us))
    });
    let words = format!("{words}{age}");
    let wait = Cell::from(Span::styled(words, style));
    Row::new([name, m2s, m2s_bar, s2m, s2m_bar, wait])
}

/// The events of all queues, oldest first.
fn merged(report: &DeviceReport) -> Vec<(f64, String)> {
    let mut events: Vec<_> = report
        .queues
        .iter()
        .flat_map(|queue| {
            queue.events.iter().filter_map(move |event| {
                let (at, text) = event.trim_start().split_once(' ')?;
                let name = format!("e{}.q{}", queue.engine, queue.queue);
                Some((at.parse().ok()?, format!("{at:>12} {name:<7} {text}")))
            })
        })
        .collect();
    events.sort_by(|(a, _): &(f64, String), (b, _)| a.total_cmp(b));
    events
}

fn event_lines(report: &DeviceReport, area: Rect, buffer: &mut Buffer) {
    let events = merged(report);
    if area.height < 2 || events.is_empty() {
        return;
    }
    let title = format!(
        "{:>12} {:<7} last events of nd{}, newest last",
        "seconds", "queue", report.routing_id
    );
    let room = usize::from(area.height - 1);
    let lines = events
        .iter()
        .skip(events.len().saturating_sub(room))
        .map(|(_, text)| Line::raw(text.as_str()));
    let lines = [Line::styled(title, HEAD)].into_iter().chain(lines);
    for (line, row) in lines.zip(area.rows()) {
        line.render(row, buffer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::live::Sample;
    use crate::observe::report::Counters;

    fn queue(engine: u16, head: u32, tail: u32, outstanding: u32) -> QueueReport {
        let ring = RingReport {
            length: 1024,
            head,
            tail,
            outstanding,
            ..RingReport::default()
        };
        QueueReport {
            engine,
            queue: 0,
            wait: if outstanding > 0 {
                Wait::S2mDoorbell
            } else {
                Wait::Nothing
            },
            last_doorbell: None,
            m2s: ring.clone(),
            s2m: ring,
            m2s_descriptors: Vec::new(),
            s2m_descriptors: Vec::new(),
            events: (0..4)
                .map(|n| {
                    format!(
                        "{:>12.6} event {engine}.{n}",
                        f64::from(n) + f64::from(engine)
                    )
                })
                .collect(),
        }
    }

    fn state(devices: u8) -> State {
        let sample = |bytes, at| Sample {
            at: Duration::from_secs(at),
            devices: (0..devices)
                .map(|routing_id| {
                    Answer::Report(Box::new(DeviceReport {
                        product: "trn2".to_owned(),
                        platform: "qemu".to_owned(),
                        routing_id,
                        connected: true,
                        counters: Counters {
                            bytes,
                            descriptors: bytes / 1000,
                            ..Counters::default()
                        },
                        queues: vec![queue(32, 512, 768, 256), queue(33, 0, 0, 0)],
                        ..DeviceReport::default()
                    }))
                })
                .collect(),
        };
        let mut state = State::new("/run/nd0.sock.ctl".to_owned());
        state.take(Ok(sample(0, 0)), Duration::ZERO);
        state.take(Ok(sample(3 << 20, 1)), Duration::from_secs(1));
        state
    }

    fn screen(state: &State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw(state, frame.area(), frame.buffer_mut()))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        (0..height).map(line).collect()
    }

    #[test]
    fn rings_rates_and_the_last_events_are_shown() {
        let lines = screen(&state(1), 132, 20);
        let text = lines.join("\n");
        assert!(
            lines[0].starts_with("/run/nd0.sock.ctl  1 device "),
            "{text}"
        );
        for part in [
            "nd0",
            "trn2/qemu",
            "connected",
            "3.0 MiB",
            "3145 ",
            "1 queue at work",
        ] {
            assert!(lines[2].contains(part), "{part}: {text}");
        }
        assert!(
            lines[4].starts_with("e32.q0    512   768 /1024    256"),
            "{text}"
        );
        assert!(
            lines[4].contains("\u{b7}\u{25cf}\u{2588}\u{2588}\u{2588}\u{2588}\u{b7}"),
            "{text}"
        );
        assert!(lines[4].contains("an s2m doorbell"), "{text}");
        // In order of time over both queues.
        let events: Vec<_> = lines
            .iter()
            .filter(|line| line.contains(" event "))
            .collect();
        assert_eq!(events.len(), 8, "{text}");
        assert!(
            events[0].contains("event 32.0") && events[7].contains("event 33.3"),
            "{text}"
        );
    }

    #[test]
    fn a_small_terminal_keeps_the_newest_events_and_nothing_breaks() {
        let state = state(16);
        let text = screen(&state, 60, 16).join("\n");
        assert!(
            text.contains("event 33.3") && !text.contains("event 32.0"),
            "{text}"
        );
        for width in [0, 1, 7, 20, 40, 80, 300] {
            for height in 0..30 {
                let mut state = state.clone();
                screen(&state, width, height);
                state.take(Err("gone".to_owned()), Duration::from_secs(2));
                screen(&state, width, height);
            }
        }
        screen(&State::new(String::new()), 80, 24);
    }

    #[test]
    fn sixteen_devices_fit_or_follow_the_chosen_one() {
        let mut state = state(16);
        let text = screen(&state, 132, 45).join("\n");
        assert!(
            (0..16).all(|id| text.contains(&format!("nd{id} "))),
            "{text}"
        );
        state.choose(isize::MAX);
        let text = screen(&state, 132, 12).join("\n");
        assert!(text.contains("nd15 ") && !text.contains("nd0 "), "{text}");
        assert!(text.contains("last events of nd15"), "{text}");
    }

    #[test]
    fn a_server_that_is_gone_is_said_over_what_was_last_known() {
        let mut state = state(1);
        state.take(Err("Connection refused".to_owned()), Duration::from_secs(2));
        state.take(Err("Connection refused".to_owned()), Duration::from_secs(5));
        let lines = screen(&state, 132, 20);
        assert!(
            lines[0].starts_with("no answer for 3 s (Connection refused)"),
            "{lines:?}"
        );
        assert!(
            lines[2].contains("nd0") && !lines[2].contains("3145"),
            "{lines:?}"
        );
        assert!(lines[4].starts_with("e32.q0"), "{lines:?}");
    }

    #[test]
    fn a_bar_wraps_as_its_ring_does() {
        let bar_of = |head, tail, outstanding| {
            bar(&RingReport {
                length: 16,
                head,
                tail,
                outstanding,
                ..RingReport::default()
            })
        };
        assert_eq!(
            bar_of(14, 2, 4),
            "\u{2588}\u{2588}\u{2588}\u{b7}\u{b7}\u{b7}\u{b7}\u{b7}\u{b7}\u{b7}\u{b7}\u{b7}\u{b7}\u{b7}\u{25cf}\u{2588}"
        );
        assert_eq!(bar_of(3, 3, 0).matches('\u{2588}').count(), 0);
        assert_eq!(bar_of(3, 3, 16).matches('\u{2588}').count(), 15);
    }

    #[test]
    fn plain_text_is_as_high_as_needed() {
        let text = plain(&state(16));
        assert!(
            text.contains("nd15") && text.contains("event 33.3"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() == line.trim_end().len()));
        assert!(!text.contains('\u{1b}'));
    }
}
