//! Keys that end a screen: `q` and Ctrl-C. Ctrl-C is only a key while the terminal is in raw mode.

use std::io::{self, IsTerminal};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Listens to the keyboard. Dropping it restores the terminal.
pub struct Keys {
    /// Receives a message when a key was pressed that ends the screen. `None` without a keyboard.
    quit: Option<UnboundedReceiver<()>>,
}

impl Keys {
    /// Starts to listen, if stdin is a terminal.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen() -> io::Result<Keys> {
        if !io::stdin().is_terminal() {
            return Ok(Keys { quit: None });
        }
        enable_raw_mode()?;
        let (sender, receiver) = unbounded_channel();
        // A read of the keyboard cannot be canceled, so the thread ends with the process.
        std::thread::spawn(move || {
            while let Ok(event) = read() {
                if is_quit(&event) && sender.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(Keys { quit: Some(receiver) })
    }

    /// Returns when such a key is pressed.
    pub async fn quit(&mut self) {
        match &mut self.quit {
            // The sender is gone if the keyboard is.
            Some(quit) => match quit.recv().await {
                Some(()) => {}
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if self.quit.is_some() {
            // A closed terminal does not have to be restored.
            let _ = disable_raw_mode();
        }
    }
}

fn is_quit(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return false };
    let is_pressed = *kind != KeyEventKind::Release;
    match code {
        KeyCode::Char('q' | 'Q') => is_pressed && !modifiers.contains(KeyModifiers::CONTROL),
        KeyCode::Char('c') => is_pressed && modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}
