//! The monitor: one small process per sandbox, outside it and without privileges. It holds the guest's socket, the
//! output spools and the deadline, and serves whoever asks about the sandbox. When it ends, the guest does too.

mod client;
mod confine;
mod doorway;
mod execution;
mod farewell;
mod from_client;
mod from_guest;
mod input;
mod link;
mod meters;
mod pause;
mod pump;
#[cfg(test)]
mod tests;

pub(crate) use self::confine::confine;
pub(crate) use self::farewell::write_ended;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use belljar_core::wire::{self, Frame};
use belljar_core::{ExecId, SandboxState, Wall};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use self::client::{Client, Role};
use self::doorway::Marks;
use self::execution::Execution;
use self::link::Link;
use self::meters::Meters;
use self::pause::Pause;
use crate::cgroup::{Freezer, Probe};
use crate::control::{Answer, CONVERSATION};
use crate::doorway::Doorway;

/// A client's answers wait here at most; then its spool is not read further until it takes some.
const CLIENT_BUFFER: usize = 128 * 1024;
/// What may wait for a client in all; then it is let go.
const MOST_WAITING: usize = 8 << 20;
/// Messages from the guest are small.
const MAX_GUEST_CONTROL: usize = 1024 * 1024;
/// Connections at once.
const MAX_CLIENTS: usize = 512;
/// Executions that get a spool of full size, if there is room; those beyond get a small one.
const FULL_SPOOLS: usize = 8;
const FULL_SPOOL: u64 = 64 << 20;
const SMALL_SPOOL: u64 = 2 << 20;
/// As many spools as there is always room for: those kept, and those of all that the guest has under way at once.
const MOST_SPOOLS: u64 = KEPT_EXECUTIONS as u64 + 256;
/// Finished executions whose output is kept.
const KEPT_EXECUTIONS: usize = 64;
/// Executions beyond those of which at least the key is kept.
const KEPT_KEYS: usize = 1024;
/// File operations have numbers apart from executions.
const FIRST_FILE_CONVERSATION: u32 = 1 << 31;
/// How long newcomers wait when there is no descriptor for them.
const DEAF: Duration = Duration::from_millis(100);
/// The longest single wait; the kernel takes no arbitrary span.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How long a killed guest may take to be gone, and clients to take their last answers.
const FAREWELL: Duration = Duration::from_secs(3);

/// What the monitor is given.
#[derive(Debug)]
pub struct Monitor {
    /// The control socket to the guest.
    pub guest: OwnedFd,
    /// The guest itself.
    pub guest_process: OwnedFd,
    /// Where clients connect.
    pub listener: OwnedFd,
    /// Closes when the creator goes away, which ends the sandbox unless it said [`LIVE_ON`](crate::plan::LIVE_ON).
    pub tie: Option<OwnedFd>,
    /// Says a byte when the launcher has reported the sandbox. Closes without one if it died before, which ends the
    /// sandbox: nobody would hear of it.
    pub launcher: Option<OwnedFd>,
    /// When the sandbox ends, on the boot clock.
    pub deadline: Duration,
    /// What the kernel says about its use of resources.
    pub probe: Option<Probe>,
    /// Whether its executions can be stopped.
    pub can_pause: bool,
    /// The switch for all of them, where they share one.
    pub freezer: Option<Freezer>,
    /// The file system of its own layer, if it can be asked.
    pub disk: Option<OwnedFd>,
    /// The sockets at which its traffic arrives, if any may.
    pub doorway: Option<Doorway>,
    /// The directory for spools.
    pub spool: OwnedFd,
    /// The most bytes that all spools may have together.
    pub keeps: u64,
    /// Who may connect, besides root.
    pub peer_uid: u32,
}

impl Monitor {
    /// Serves until the sandbox ends.
    pub fn run(self) -> io::Result<SandboxState> {
        let mut service = Service::new(self)?;
        let served = service.serve();
        let state = *served.as_ref().unwrap_or(&SandboxState::Lost);
        service.farewell(state);
        served
    }
}

struct Service {
    given: Monitor,
    guest: Link,
    deadline: Duration,
    pause: Pause,
    /// How often it was asked for.
    pauses: u32,
    meters: Meters,
    clients: BTreeMap<u64, Client>,
    executions: BTreeMap<u32, Execution>,
    /// The keys of executions that are forgotten otherwise, the oldest first.
    old_keys: VecDeque<(String, ExecId)>,
    /// Which packets are whose.
    marks: Marks,
    /// The highest that anyone came with.
    epoch: u64,
    next_client: u64,
    next_exec: u32,
    next_file: u32,
    buffer: Vec<u8>,
    ending: Option<SandboxState>,
    /// Whether newcomers have to wait.
    deaf: bool,
}

impl Service {
    fn new(given: Monitor) -> io::Result<Self> {
        let guest = given.guest.try_clone()?;
        rustix::io::ioctl_fionbio(&guest, true)?;
        Ok(Self {
            guest: Link::new(guest, MAX_GUEST_CONTROL),
            deadline: given.deadline,
            pause: Pause::Not,
            pauses: 0,
            meters: Meters::default(),
            clients: BTreeMap::new(),
            executions: BTreeMap::new(),
            old_keys: VecDeque::new(),
            marks: Marks::default(),
            epoch: 0,
            next_client: 0,
            next_exec: 1,
            next_file: FIRST_FILE_CONVERSATION,
            buffer: Vec::new(),
            ending: None,
            deaf: false,
            given,
        })
    }

    fn serve(&mut self) -> io::Result<SandboxState> {
        let mut behind = false;
        loop {
            self.see_to_pause();
            self.see_to_meters();
            let now = self.life_clock();
            if now >= self.deadline {
                return Ok(SandboxState::Expired);
            }
            let patience = if self.deaf { DEAF } else { LONGEST_WAIT }
                .min(self.pause_patience())
                .min(self.meter_patience());
            let ready = self.wait(if behind { Duration::ZERO } else { patience.min(self.deadline - now) })?;
            self.deaf = false;
            if ready.guest.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) && !self.hear_guest() {
                let expired = self.life_clock() >= self.deadline;
                return Ok(if expired { SandboxState::Expired } else { SandboxState::Lost });
            }
            if ready.tie && !self.hear_creator() {
                return Ok(SandboxState::Killed);
            }
            if ready.launcher && !self.hear_launcher() {
                return Ok(SandboxState::Lost);
            }
            if ready.listener {
                self.accept();
            }
            for (id, flags) in ready.clients {
                if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    self.hear_client(id);
                }
            }
            behind = self.pump();
            if let Some(state) = self.ending {
                return Ok(state);
            }
        }
    }

    fn wait(&self, longest: Duration) -> io::Result<Ready> {
        let mut order = Vec::with_capacity(self.clients.len());
        let wants = |link: &Link, read: bool| {
            let read = if read { PollFlags::IN } else { PollFlags::empty() };
            let write = if link.pending() > 0 { PollFlags::OUT } else { PollFlags::empty() };
            read | write
        };
        let mut polled = vec![
            PollFd::new(&self.guest, wants(&self.guest, true)),
            PollFd::new(&self.given.listener, if self.deaf { PollFlags::empty() } else { PollFlags::IN }),
        ];
        if let Some(tie) = &self.given.tie {
            polled.push(PollFd::new(tie, PollFlags::IN));
        }
        let launcher = polled.len();
        if let Some(word) = &self.given.launcher {
            polled.push(PollFd::new(word, PollFlags::IN));
        }
        let first_client = polled.len();
        for (id, client) in &self.clients {
            order.push(*id);
            polled.push(PollFd::new(&client.link, wants(&client.link, self.reads_from(client))));
        }
        let timeout =
            Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Ready {
            guest: polled[0].revents(),
            listener: !polled[1].revents().is_empty(),
            tie: self.given.tie.is_some() && !polled[2].revents().is_empty(),
            launcher: self.given.launcher.is_some() && !polled[launcher].revents().is_empty(),
            clients: order.into_iter().zip(polled[first_client..].iter().map(PollFd::revents)).collect(),
        })
    }

    /// Hears the creator's one word; false when it went away without.
    fn hear_creator(&mut self) -> bool {
        let Some(tie) = &self.given.tie else { return true };
        let spoke = matches!(rustix::io::read(tie, &mut [0; 1]), Ok(1));
        if spoke {
            self.given.tie = None;
        }
        spoke
    }

    /// Hears the launcher's one word; false when it died without.
    fn hear_launcher(&mut self) -> bool {
        let word = self.given.launcher.take();
        word.is_none_or(|word| matches!(rustix::io::read(word, &mut [0; 1]), Ok(1)))
    }

    /// Whether a client's next bytes can be dealt with now.
    fn reads_from(&self, client: &Client) -> bool {
        match &client.role {
            Role::New => true,
            Role::Follower { exec, feeds, .. } => {
                !*feeds || self.executions.get(&exec.0).is_none_or(|execution| execution.input.wants_more())
            }
            Role::Files { input, .. } => input.wants_more(),
            Role::Waits { .. } | Role::AwaitsPause | Role::AwaitsEnd | Role::Closing => false,
        }
    }

    /// Takes in everyone who waits at the door.
    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let socket = match accept_with(&self.given.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => {
                    // Out of descriptors: they stay at the door for a while.
                    self.deaf = true;
                    return;
                }
            };
            let allowed = rustix::net::sockopt::socket_peercred(&socket)
                .is_ok_and(|peer| peer.uid.is_root() || peer.uid.as_raw() == self.given.peer_uid)
                || !Wall::MonitorPeers.stands();
            if allowed && self.clients.len() < MAX_CLIENTS {
                self.clients.insert(self.next_client, Client::new(Link::new(socket, wire::MAX_CONTROL)));
                self.next_client += 1;
            }
        }
    }
}

struct Ready {
    guest: PollFlags,
    listener: bool,
    tie: bool,
    launcher: bool,
    clients: Vec<(u64, PollFlags)>,
}

/// The guest keeps the same deadline a little later, so that a living monitor is the one to say why it ended.
pub(crate) fn guest_deadline(deadline: Duration) -> u64 {
    u64::try_from(deadline.saturating_add(Duration::from_millis(200)).as_millis()).unwrap_or(u64::MAX)
}

fn answer(answer: &Answer) -> Frame {
    Frame::control(CONVERSATION, answer)
}
