//! The device thread: one function, one client at a time.
use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;

use super::connection::{Calls, Connection, Patience, Received};
use super::inbox::Inbox;
use super::listener::Listener;
use super::session::{Counters, Served, Session};
use super::visitors::{MAX_VISITORS, Visitors};
use super::wait::{Attention, Settings, Waiter};
use super::{PciFunction, Progress};

/// Commands that may wait for the device thread; a sender beyond that waits itself.
const COMMANDS: usize = 16;

/// Messages between two slices of work, in bytes as [`Session::serve_some`] counts them: 4,096 register writes. A read
/// that waits behind posted writes must not wait for a slice with each receive call, and nobody else for all of them.
const MESSAGES: u64 = 1 << 20;

/// Most receive calls between two slices of work, each of up to 64 KiB: what is skipped of a message that is too long
/// costs nothing else.
const RECEIVES: u32 = 17;

/// How long to leave the listener alone after accept(2) failed, which otherwise would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a device thread ended, other than by [`Handle::stop`].
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A fault in the function, or in the wire. Only this device is lost.
    #[error("the device failed and is no longer served: {0}; please report this with the log")]
    Panicked(String),
    /// A call that cannot reasonably fail.
    #[error("{what} failed: {errno}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        #[source]
        errno: Errno,
    },
}

/// The device thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device is no longer served")]
pub struct Gone;

/// What the wire can say about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireStatus {
    /// A client is connected.
    pub connected: bool,
    /// Connections accepted, this one included.
    pub connections: u64,
    /// Clients turned away because another was connected.
    pub turned_away: u64,
    /// Of this connection, or of the last.
    pub counters: Counters,
    /// Of this connection, or of the last.
    pub calls: Calls,
    /// `poll` calls since the start.
    pub polls: u64,
    /// `DMA_READ` and `DMA_WRITE` messages that the client has yet to answer.
    pub dma_in_flight: usize,
}

type Call<F> = Box<dyn FnOnce(&mut F) + Send>;

enum Order<F> {
    Call(Call<F>),
    Status(SyncSender<WireStatus>),
}

/// Wakes the device thread.
#[derive(Debug)]
struct Wake {
    event: OwnedFd,
    stop: AtomicBool,
}

impl Wake {
    fn ring(&self) {
        // Fails only when the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// The way to a device thread from any other thread.
pub struct Handle<F> {
    orders: SyncSender<Order<F>>,
    wake: Arc<Wake>,
}

impl<F> Clone for Handle<F> {
    fn clone(&self) -> Self {
        Self {
            orders: self.orders.clone(),
            wake: self.wake.clone(),
        }
    }
}

impl<F> std::fmt::Debug for Handle<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl<F> Handle<F> {
    /// Runs `call` on the device thread, between two slices of work, without waiting for it.
    ///
    /// # Errors
    /// The device thread has ended.
    pub fn send(&self, call: impl FnOnce(&mut F) + Send + 'static) -> Result<(), Gone> {
        self.order(Order::Call(Box::new(call)))
    }

    /// Runs `call` on the device thread, between two slices of work, and returns its result. Never call this from the
    /// device thread itself.
    ///
    /// # Errors
    /// The device thread has ended, or ends before it comes to this call.
    pub fn call<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut F) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        let (sender, receiver) = sync_channel(1);
        // Only fails if nobody waits for the result any more.
        self.send(move |function| _ = sender.send(call(function)))?;
        receiver.recv().map_err(|_| Gone)
    }

    /// What the wire has done so far.
    ///
    /// # Errors
    /// The device thread has ended.
    pub fn status(&self) -> Result<WireStatus, Gone> {
        let (sender, receiver) = sync_channel(1);
        self.order(Order::Status(sender))?;
        receiver.recv().map_err(|_| Gone)
    }

    /// Asks the device thread to end, whatever it is doing: the client is dropped, the socket removed.
    pub fn stop(&self) {
        self.wake.stop.store(true, Ordering::Release);
        self.wake.ring();
    }

    fn order(&self, order: Order<F>) -> Result<(), Gone> {
        self.orders.send(order).map_err(|_| Gone)?;
        self.wake.ring();
        Ok(())
    }
}

/// A client and what is known about it.
struct Client {
    connection: Connection,
    inbox: Inbox,
    session: Session,
    /// Its side is closed: answer what it had sent, then end.
    ended: bool,
    /// The last look at its messages ended before they did.
    more: bool,
}

impl Client {
    /// Messages are here that can be served now.
    fn can_go_on(&self) -> bool {
        self.more && !self.session.is_behind()
    }

    /// Nothing but its next message is awaited of it.
    fn listens(&mut self) -> bool {
        !self.ended && !self.more && self.session.outbox().pending() == 0
    }
}

/// One function and its socket.
pub struct Server<F> {
    listener: Listener,
    function: F,
    orders: Receiver<Order<F>>,
    wake: Arc<Wake>,
    client: Option<Client>,
    visitors: Visitors,
    status: WireStatus,
    accept_paused: bool,
    waiter: Waiter,
    attention: Attention,
}

impl<F: PciFunction> Server<F> {
    /// Prepares to serve `function` on `listener`.
    ///
    /// # Errors
    /// No descriptor left for the wake-up event.
    pub fn new(
        listener: Listener,
        function: F,
        settings: Settings,
    ) -> Result<(Self, Handle<F>), ServeError> {
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
                ServeError::System {
                    what: "eventfd",
                    errno,
                }
            })?;
        let wake = Arc::new(Wake {
            event,
            stop: AtomicBool::new(false),
        });
        let (sender, orders) = sync_channel(COMMANDS);
        let handle = Handle {
            orders: sender,
            wake: wake.clone(),
        };
        let status = WireStatus::default();
        Ok((
            Self {
                listener,
                function,
                orders,
                wake,
                client: None,
                visitors: Visitors::default(),
                status,
                accept_paused: false,
                waiter: Waiter::new(settings),
                attention: Attention::default(),
            },
            handle,
        ))
    }

    /// Starts a thread called `name` that serves until [`Handle::stop`].
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn spawn(self, name: &str) -> Result<JoinHandle<Result<(), ServeError>>, ServeError>
    where
        F: Send + 'static,
    {
        let thread = std::thread::Builder::new().name(name.into());
        thread
            .spawn(move || self.run())
            .map_err(|error| ServeError::System {
                what: "starting the device thread",
                errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
            })
    }

    /// Serves on this thread until [`Handle::stop`].
    ///
    /// # Errors
    /// A panic anywhere below, which ends this device alone.
    pub fn run(mut self) -> Result<(), ServeError> {
        // Nothing of the function is used after a panic but its last words; then it is dropped with `self`.
        let result = catch_unwind(AssertUnwindSafe(|| self.serve()));
        result.unwrap_or_else(|panic| {
            // Its state may be anything: a second panic only costs the words.
            let words = catch_unwind(AssertUnwindSafe(|| self.function.last_words()));
            if let Ok(words) = words
                && !words.is_empty()
            {
                tracing::error!("state at the panic:\n{words}");
            }
            Err(ServeError::Panicked(panic_message(panic.as_ref())))
        })
    }

    fn serve(&mut self) -> Result<(), ServeError> {
        let started = Instant::now();
        let mut progress = Progress::Again;
        while !self.wake.stop.load(Ordering::Acquire) {
            let received = self.wait_for_client(progress);
            let ready = match received {
                Some(_) => Ready::CLIENT,
                None => self.wait(progress)?,
            };
            let now = started.elapsed();
            self.function.tick(now);
            match received {
                Some(received) => self
                    .attention
                    .on_client(now, received == Ok(Received::Nothing)),
                None => self
                    .attention
                    .on_all(now, ready.client.contains(PollFlags::IN)),
            }
            if ready.orders {
                self.execute_orders();
            }
            if !ready.client.is_empty() || self.client.as_ref().is_some_and(Client::can_go_on) {
                self.serve_client(received);
            }
            if ready.visitors {
                self.visitors.serve();
            }
            // The old client's end comes before the new client's beginning: while there is still something to read from
            // one that has left, the next one is not turned away but waits.
            if ready.listener && (self.client.is_none() || !ready.client.contains(PollFlags::HUP)) {
                self.accept();
            }
            progress = self.function.run();
            if let Some(client) = &mut self.client {
                client.session.pump_dma(&mut self.function);
            }
            self.flush();
            if self.function.leaves() {
                self.drop_client("a fault on purpose");
            }
        }
        if self.client.take().is_some() {
            self.function.disconnect();
            tracing::info!("stopped while a client was connected");
        }
        Ok(())
    }

    /// Waits for the client alone, if it alone is likely to want something: one system call instead of two between its
    /// message and ours, which is a fifth of a round trip (docs/performance.md). Whoever else wants something waits for
    /// some milliseconds.
    fn wait_for_client(&mut self, progress: Progress) -> Option<Result<Received, Errno>> {
        let client = self.client.as_mut()?;
        let alone = progress == Progress::Idle
            && client.listens()
            && !self.accept_paused
            && self.visitors.is_empty()
            && self.waiter.blocks()
            && self.attention.may_be_on_client();
        alone.then(|| {
            client
                .connection
                .receive(&mut client.inbox, Patience::Short)
        })
    }

    /// Blocks until there is something to do; only looks if the function has work left.
    fn wait(&mut self, progress: Progress) -> Result<Ready, ServeError> {
        let more = self.client.as_ref().is_some_and(Client::can_go_on);
        let limit = match progress {
            _ if more => Some(Duration::ZERO),
            Progress::Again => Some(Duration::ZERO),
            Progress::After(delay) => Some(delay),
            Progress::Idle => None,
        };
        let limit = match limit {
            None if self.accept_paused => Some(ACCEPT_PAUSE),
            Some(limit) if self.accept_paused => Some(limit.min(ACCEPT_PAUSE)),
            limit => limit,
        };
        let listen = if self.accept_paused {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        let wake = PollFd::new(&self.wake.event, PollFlags::IN);
        let listener = PollFd::from_borrowed_fd(self.listener.as_fd(), listen);
        let nothing = || PollFd::new(&self.wake.event, PollFlags::empty());
        let mut all: [_; 3 + MAX_VISITORS] = std::array::from_fn(|_| nothing());
        all[0] = wake;
        all[1] = listener;
        let mut count = 3;
        for socket in self.visitors.sockets().take(MAX_VISITORS) {
            all[count] = PollFd::from_borrowed_fd(socket, PollFlags::IN);
            count += 1;
        }
        if let Some(client) = &mut self.client {
            let mut flags = PollFlags::empty();
            flags.set(
                PollFlags::IN,
                !client.ended && !client.session.outbox().is_full(),
            );
            flags.set(PollFlags::OUT, client.session.outbox().pending() > 0);
            all[2] = PollFd::from_borrowed_fd(client.connection.as_fd(), flags);
        }
        self.waiter
            .wait(&mut all[..count], limit)
            .map_err(|errno| ServeError::System {
                what: "poll",
                errno,
            })?;
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = Ready {
            orders: is_ready(&all[0]),
            listener: is_ready(&all[1]) || self.accept_paused,
            // Without a client this is the wake-up event, asked for nothing.
            client: all[2].revents(),
            visitors: all[3..count].iter().any(is_ready),
        };
        self.accept_paused = false;
        Ok(ready)
    }

    fn execute_orders(&mut self) {
        let mut count = [0; 8];
        // Reading resets the count; orders sent from now on ring again.
        let _ = rustix::io::read(&self.wake.event, &mut count);
        for _ in 0..COMMANDS {
            match self.orders.try_recv() {
                Ok(Order::Call(call)) => call(&mut self.function),
                Ok(Order::Status(sender)) => _ = sender.send(self.status()),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
        // Others may have waited for room in the queue since.
        self.wake.ring();
    }

    fn status(&self) -> WireStatus {
        let mut status = self.status;
        status.polls = self.waiter.calls();
        if let Some(client) = &self.client {
            status.connected = true;
            status.counters = client.session.counters();
            status.calls = client.connection.calls();
            status.dma_in_flight = client.session.dma_in_flight();
        }
        status
    }

    /// `first`: what a receive call has brought already.
    fn serve_client(&mut self, first: Option<Result<Received, Errno>>) {
        let Some(client) = &mut self.client else {
            return;
        };
        let mut first = first;
        let mut budget = MESSAGES;
        // What is here already comes first: receiving would not make it fewer.
        let mut receives = !client.more;
        for _ in 0..RECEIVES {
            let mut full = false;
            if receives && !client.ended && !client.session.outbox().is_full() {
                let outcome = first.take().unwrap_or_else(|| {
                    client.connection.receive(&mut client.inbox, Patience::None)
                });
                match outcome {
                    Ok(Received::Some | Received::Nothing) => {}
                    Ok(Received::Full) => full = true,
                    Ok(Received::End) => client.ended = true,
                    Err(errno) => return self.drop_client(&format!("connection lost: {errno}")),
                }
            }
            let (function, inbox) = (&mut self.function, &mut client.inbox);
            match client.session.serve_some(function, inbox, &mut budget) {
                Ok(served) => client.more = served == Served::Budget,
                Err(error) => return self.drop_client(&error.to_string()),
            }
            if client.more || receives && !full {
                break;
            }
            receives = true;
        }
        self.flush();
    }

    /// Sends what waits, sees to it that what a full outbox had stopped goes on, and ends a client that has left.
    fn flush(&mut self) {
        let Some(client) = &mut self.client else {
            return;
        };
        let was_full = client.session.outbox().is_full();
        if let Err(errno) = client.connection.send(client.session.outbox()) {
            // What it had sent before it left still counts.
            let reason = if client.ended {
                String::new()
            } else {
                format!("cannot send: {errno}")
            };
            return self.drop_client(&reason);
        }
        // What a full outbox had stopped goes on at once.
        client.more |= was_full && !client.session.outbox().is_full();
        if client.ended && !client.more && !client.session.outbox().is_full() {
            let reason = if client.inbox.is_between_messages() {
                ""
            } else {
                "in the middle of a message"
            };
            self.drop_client(reason);
        }
    }

    fn drop_client(&mut self, reason: &str) {
        self.status = self.status();
        self.status.connected = false;
        self.status.dma_in_flight = 0;
        if self.client.take().is_none() {
            return;
        }
        self.function.disconnect();
        let Counters {
            messages,
            posted_writes,
            refused,
            dma_messages,
        } = self.status.counters;
        if reason.is_empty() {
            tracing::info!(
                messages,
                posted_writes,
                refused,
                dma_messages,
                "client disconnected"
            );
        } else {
            tracing::warn!(
                messages,
                posted_writes,
                refused,
                dma_messages,
                "client disconnected: {reason}"
            );
        }
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(None) => {}
            Ok(Some(socket)) if self.client.is_some() => {
                self.status.turned_away += 1;
                self.visitors.admit(socket);
                tracing::warn!(
                    "a second client was turned away: one device serves one client at a time"
                );
            }
            Ok(Some(socket)) => match Connection::new(socket) {
                Ok(connection) => {
                    let (inbox, session) = (Inbox::default(), Session::default());
                    self.client = Some(Client {
                        connection,
                        inbox,
                        session,
                        ended: false,
                        more: false,
                    });
                    self.status.connections += 1;
                    tracing::info!("client connected");
                }
                Err(errno) => tracing::warn!("a client was lost: {errno}"),
            },
            Err(errno) => {
                self.accept_paused = true;
                tracing::warn!("a client waits but accept failed: {errno}; see ulimit -n");
            }
        }
    }
}

struct Ready {
    orders: bool,
    listener: bool,
    client: PollFlags,
    visitors: bool,
}

impl Ready {
    /// The client, and nobody else that is known of.
    const CLIENT: Self = Self {
        orders: false,
        listener: false,
        client: PollFlags::IN,
        visitors: false,
    };
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".into())
}
