//! The terminal: asks, draws, listens for keys.
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::{State, ask, draw, plain};

/// Shows the devices behind `control` until a key ends it. Where stdout is no terminal, one frame is printed, with the
/// rates over `interval`.
///
/// # Errors
/// The terminal cannot be used; or, without one, nobody answers.
pub fn run(control: &Path, interval: Duration) -> Result<(), String> {
    let start = Instant::now();
    let mut state = State::new(control.display().to_string());
    let next = |state: &mut State| {
        let result = ask(control, start.elapsed());
        let failed = result.as_ref().err().cloned();
        state.take(result, start.elapsed());
        failed
    };
    // Nobody there from the start is most likely a wrong path: an error, not an empty screen.
    if let Some(error) = next(&mut state) {
        return Err(error);
    }
    if !io::stdout().is_terminal() {
        std::thread::sleep(interval);
        if let Some(error) = next(&mut state) {
            return Err(error);
        }
        // A reader that has seen enough is no error.
        let _ = io::Write::write_all(&mut io::stdout(), plain(&state).as_bytes());
        return Ok(());
    }
    let mut terminal = ratatui::try_init().map_err(|error| format!("the terminal: {error}"))?;
    let result = loop {
        let area = |frame: &mut ratatui::Frame<'_>| draw(&state, frame.area(), frame.buffer_mut());
        if let Err(error) = terminal.draw(area) {
            break Err(error);
        }
        match keys(&mut state, interval) {
            Ok(Next::Ask) => drop(next(&mut state)),
            Ok(Next::Draw) => {}
            Ok(Next::Quit) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    result.map_err(|error| format!("the terminal: {error}"))
}

/// What to do after the keys.
enum Next {
    Ask,
    Draw,
    Quit,
}

/// Waits for a key, or until it is time to ask again.
fn keys(state: &mut State, interval: Duration) -> io::Result<Next> {
    if !event::poll(interval)? {
        return Ok(Next::Ask);
    }
    let Event::Key(key) = event::read()? else {
        // Another size, most likely.
        return Ok(Next::Draw);
    };
    if key.kind == KeyEventKind::Release {
        return Ok(Next::Draw);
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Ok(Next::Quit),
        KeyCode::Char('c') if control => return Ok(Next::Quit),
        KeyCode::Up | KeyCode::Char('k') => state.choose(-1),
        KeyCode::Down | KeyCode::Char('j') => state.choose(1),
        KeyCode::Home => state.choose(isize::MIN),
        KeyCode::End => state.choose(isize::MAX),
        _ => {}
    }
    Ok(Next::Draw)
}
