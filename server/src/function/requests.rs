//! Requests of the mailboxes: executed here, whichever way they came.
use std::fmt::Write as _;
use std::time::Duration;

use neuron_protocol::mailbox::{
    self, Command, DATA_WINDOW_SIZE, MAX_POST, MAX_READ_REGISTERS, Metrics, RequestHeader,
    ResponseHeader, Sequence, Status, api_version,
};
use neuron_protocol::registers::misc_ram as window;

use super::mailbox::Request;
use super::{Mailbox, NeuronFunction, firmware};
use crate::observe::event::{EventKind, MailboxFault, Scope};
use crate::policy::{Corruption, Point, Verdict};

/// The way a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// Host memory.
    Memory,
    /// The firmware window.
    Registers,
}

/// An answer as it goes out.
#[derive(Debug)]
pub(super) struct Answer {
    /// The request's, unless a policy wants another.
    pub(super) sequence: Sequence,
    /// Outcome.
    pub(super) status: Status,
    /// What was asked for.
    pub(super) payload: Vec<u8>,
    /// What a policy does to its bytes, header first.
    pub(super) corruption: Option<Corruption>,
}

impl Answer {
    /// The request failed.
    pub(super) const fn failed(sequence: Sequence) -> Self {
        Self {
            sequence,
            status: Status::Failed,
            payload: Vec::new(),
            corruption: None,
        }
    }
}

impl NeuronFunction {
    /// Executes a request of the legacy mailbox.
    pub(super) fn execute(&mut self, request: &Request) {
        self.perform(request, Via::Memory);
    }

    /// Sends an answer the way the request came.
    pub(super) fn answer(&mut self, via: Via, answer: &Answer) {
        match via {
            Via::Memory => {
                if let Some((sequence, at, bytes, response)) = self.mailbox.executing() {
                    let length = answer.payload.len() + mailbox::RESPONSE_HEADER_SIZE;
                    let kind = EventKind::MailboxRequest {
                        sequence: sequence.get(),
                        request: (at, bytes),
                        response: (response, u32::try_from(length).unwrap_or(u32::MAX)),
                    };
                    self.observers.emit(Scope::Device, kind);
                }
                if let Err(error) = self.mailbox.answer(answer) {
                    tracing::warn!(%error, "mailbox request not answered");
                }
            }
            Via::Registers => self.answer_in_registers(answer),
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
                self.perform(&request, Via::Registers);
            }
            Err(error) => {
                tracing::warn!(%error, "register mailbox request refused");
                let kind = EventKind::MailboxRefused(MailboxFault::Malformed(error));
                self.observers.emit(Scope::Device, kind);
                // Sequence 0 belongs to no request, so that no answer can be meant for it.
                if let Some(sequence) = Sequence::new(header.sequence) {
                    self.answer_in_registers(&Answer::failed(sequence));
                } else {
                    self.misc_ram.set(window::TRIGGER, 0);
                }
            }
        }
    }

    /// Answer first, trigger last: it is what the driver polls.
    fn answer_in_registers(&mut self, answer: &Answer) {
        let Answer {
            sequence,
            status,
            payload,
            corruption,
        } = answer;
        let (sequence, status) = (*sequence, *status);
        let Some(header) = ResponseHeader::for_register(sequence, status, payload.len()) else {
            // Only a long read comes here: the legacy mailbox has room for it.
            tracing::warn!(
                "the answer to a register mailbox request has {} bytes, the window {DATA_WINDOW_SIZE}: failed",
                payload.len()
            );
            return self.answer_in_registers(&Answer::failed(sequence));
        };
        let mut bytes = header.to_word().to_le_bytes().to_vec();
        bytes.extend(header.register_checksum(payload).to_le_bytes());
        bytes.extend(payload);
        if let Some(corruption) = corruption {
            corruption.apply(&mut bytes);
        }
        let places = [window::REQUEST_HIGH, window::REQUEST_LOW];
        let places = places.into_iter().chain((window::DATA..).step_by(4));
        for (offset, chunk) in places.zip(bytes.chunks(4)) {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            self.misc_ram.set(offset, u32::from_le_bytes(word));
        }
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

    /// Does what a well-formed request asks for, and answers it as far as a policy lets it.
    fn perform(&mut self, request: &Request, via: Via) {
        let point = Point::Mailbox {
            command: request.command,
            sequence: request.sequence.get(),
        };
        let mut answer = Answer::failed(request.sequence);
        let mut held = None;
        match self.policies.judge(self.now, point) {
            Verdict::Drop => {
                self.mailbox = Mailbox::default();
                return;
            }
            Verdict::Fail => return self.answer(via, &answer),
            Verdict::Delay(by) if by > Duration::ZERO => held = Some(self.now.saturating_add(by)),
            Verdict::Corrupt(corruption) => answer.corruption = Some(corruption),
            Verdict::WrongSequence => answer.sequence = request.sequence.next(),
            _ => {}
        }
        (answer.status, answer.payload) = self.outcome(request);
        match held {
            Some(at) => self.held.answer = Some((at, via, answer)),
            None => self.answer(via, &answer),
        }
    }

    /// Executes a request.
    fn outcome(&mut self, request: &Request) -> (Status, Vec<u8>) {
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
        (status, payload)
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
