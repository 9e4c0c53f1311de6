//! Requests of the mailboxes: executed here, whichever way they came.
use std::fmt::Write as _;

use neuron_protocol::mailbox::{
    self, Command, DATA_WINDOW_SIZE, MAX_POST, MAX_READ_REGISTERS, Metrics, RequestHeader,
    ResponseHeader, Sequence, Status, api_version,
};
use neuron_protocol::registers::misc_ram as window;

use super::mailbox::Request;
use super::{Mailbox, NeuronFunction, firmware};
use crate::observe::event::{EventKind, Scope};
use crate::policy::{Point, Verdict};

impl NeuronFunction {
    /// Executes a request of the legacy mailbox.
    pub(super) fn execute(&mut self, request: &Request) {
        let Some((status, payload)) = self.perform(request) else {
            self.mailbox = Mailbox::default();
            return;
        };
        if let Err(error) = self.mailbox.answer(status, &payload) {
            tracing::warn!(%error, "mailbox request not answered");
        }
    }

    /// The register mailbox (contract §4.2): header and answer in the window, done when the trigger reads 0.
    pub(super) fn register_mailbox(&mut self) {
        let version = self.config.firmware.api_version;
        if u32::from(version) < api_version::REGISTER_MAILBOX {
            tracing::warn!(
                "register mailbox request not answered: firmware API {version} only has the legacy mailbox; see --firmware-api"
            );
            return;
        }
        let word = |offset| self.misc_ram.read(offset).unwrap_or(0);
        let header =
            RequestHeader::from_words([word(window::REQUEST_HIGH), word(window::REQUEST_LOW)]);
        let data = self.data_window();
        match mailbox::Request::from_parts(header, &data) {
            Ok(request) => {
                let request = Request {
                    sequence: request.sequence,
                    command: request.command,
                    payload: request.payload.to_vec(),
                };
                if let Some((status, payload)) = self.perform(&request) {
                    self.answer_in_registers(request.sequence, status, &payload);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "register mailbox request refused");
                // Sequence 0 belongs to no request, so that no answer can be meant for it.
                if let Some(sequence) = Sequence::new(header.sequence) {
                    self.answer_in_registers(sequence, Status::Failed, &[]);
                } else {
                    self.misc_ram.set(window::TRIGGER, 0);
                }
            }
        }
    }

    /// Answer first, trigger last: it is what the driver polls.
    fn answer_in_registers(&mut self, sequence: Sequence, status: Status, payload: &[u8]) {
        let Some(header) = ResponseHeader::for_register(sequence, status, payload.len()) else {
            // Only a long read comes here: the legacy mailbox has room for it.
            tracing::warn!(
                "the answer to a register mailbox request has {} bytes, the window {DATA_WINDOW_SIZE}: failed",
                payload.len()
            );
            return self.answer_in_registers(sequence, Status::Failed, &[]);
        };
        for (offset, chunk) in (window::DATA..).step_by(4).zip(payload.chunks(4)) {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            self.misc_ram.set(offset, u32::from_le_bytes(word));
        }
        self.misc_ram.set(window::REQUEST_HIGH, header.to_word());
        self.misc_ram
            .set(window::REQUEST_LOW, header.register_checksum(payload));
        self.misc_ram.set(window::TRIGGER, 0);
    }

    fn data_window(&self) -> [u8; DATA_WINDOW_SIZE] {
        let mut data = [0; DATA_WINDOW_SIZE];
        for (offset, chunk) in (window::DATA..).step_by(4).zip(data.chunks_exact_mut(4)) {
            let word = self.misc_ram.read(offset).unwrap_or(0);
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        data
    }

    /// Does what a well-formed request asks for; `None` if a policy lets it go unanswered.
    fn perform(&mut self, request: &Request) -> Option<(Status, Vec<u8>)> {
        let point = Point::Mailbox {
            command: request.command,
        };
        if self.policies.judge(point) != Verdict::Proceed {
            return None;
        }
        let (status, payload) = match Command::from_number(request.command) {
            Some(Command::Read) => self.read_for_mailbox(&request.payload),
            Some(Command::PostToCw) => (self.show_metrics(&request.payload), Vec::new()),
            Some(command) => firmware::execute(
                &self.config.firmware,
                &mut self.settings,
                command,
                &request.payload,
            ),
            None => {
                tracing::warn!("mailbox command {} is unknown", request.command);
                (Status::UnknownCommand, Vec::new())
            }
        };
        self.observers.emit(
            Scope::Device,
            EventKind::Mailbox {
                command: request.command,
                sequence: request.sequence.get(),
                status: status.into(),
            },
        );
        Some((status, payload))
    }

    /// One word per device-side address asked for; 0 where no register stands (contract §4.1).
    fn read_for_mailbox(&mut self, payload: &[u8]) -> (Status, Vec<u8>) {
        let (addresses, rest) = payload.as_chunks::<8>();
        if !rest.is_empty() || addresses.len() > MAX_READ_REGISTERS {
            tracing::warn!(
                "mailbox read of {} bytes of addresses: whole ones, {MAX_READ_REGISTERS} at most",
                payload.len()
            );
            return (Status::Failed, Vec::new());
        }
        let mut words = Vec::with_capacity(addresses.len() * 4);
        for address in addresses {
            let mut word = [0; 4];
            if let Some((offset, left)) = self.generation.soc_to_bar(u64::from_le_bytes(*address))
                && left >= 4
            {
                self.read_registers(offset, &mut word);
            }
            words.extend(word);
        }
        (Status::Ok, words)
    }

    /// Shows posted metrics in the log. They are in the request or, from drivers that put them only there, in the data
    /// window.
    fn show_metrics(&self, payload: &[u8]) -> Status {
        if payload.len() > MAX_POST {
            tracing::warn!(
                "post of {} bytes of metrics refused: {MAX_POST} at most",
                payload.len()
            );
            return Status::Failed;
        }
        let window = self.data_window();
        let bytes = if payload.is_empty() { &window } else { payload };
        let mut text = String::new();
        for metric in Metrics::new(bytes) {
            match metric {
                Ok(metric) => {
                    let value = metric.value.escape_ascii();
                    // Fails for no String.
                    let _ = write!(text, " {}={value}", metric.id);
                }
                Err(error) => tracing::warn!("posted metrics: {error}"),
            }
        }
        tracing::info!(
            "metrics posted:{}",
            if text.is_empty() { " none" } else { &text }
        );
        Status::Ok
    }
}
