//! Questions about names. What may be known is answered with an address that stands for the name; the rest is refused, and no
//! question of a sandbox reaches anybody's resolver as it was asked.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use belljar_core::{ExecId, FlowKind, Verdict};
use belljar_jail::arrival::{self, Arrival};
use tokio::io::Interest;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use super::limits::Place;
use super::lingerless;
use super::relay::{receive, send};
use super::resolver::NoAddress;
use super::served::{Served, Trip, Unattributed, denied};
use crate::dns::{Code, Kind, MAX_QUERY, NoQuery, Query, frame, unframe};
use crate::policy::{Reason, decide};
use crate::recording::Finder;

/// Questions that are answered at once; others are left for the asker to repeat.
const AT_ONCE: usize = 64;
/// How long an answer may be used, in seconds.
const TTL: u32 = 60;
/// How long a connection for questions may rest.
const REST: Duration = Duration::from_secs(30);

/// Answers questions until the sandbox ends.
pub(super) async fn serve(served: Arc<Served>, socket: OwnedFd) -> io::Result<()> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    let socket = Arc::new(UdpSocket::from_std(socket)?);
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut buffer = [0; MAX_QUERY + 1];
    loop {
        let receive = || arrival::receive(socket.as_fd(), &mut buffer);
        let arrival = match socket.async_io(Interest::READABLE, receive).await {
            Ok(arrival) => arrival,
            // One that cannot be understood, or an error that an earlier answer met.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::CONNREFUSED.raw_os_error()) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (served, socket) = (served.clone(), socket.clone());
        let question = buffer[..arrival.length].to_vec();
        tokio::spawn(async move {
            let exec = served.whose(arrival.mark).await;
            if let Some(answer) = answer(&served, exec, &question).await {
                reply(&socket, &arrival, &answer).await;
            }
            drop(place);
        });
    }
}

async fn reply(socket: &UdpSocket, arrival: &Arrival, answer: &[u8]) {
    let send = || arrival::answer(socket.as_fd(), arrival, answer);
    if let Err(error) = socket.async_io(Interest::WRITABLE, send).await {
        tracing::debug!(%error, "an answer about a name was not sent");
    }
}

/// Answers the questions of one connection.
pub(super) async fn serve_stream(
    served: &Arc<Served>,
    exec: Result<Option<ExecId>, Unattributed>,
    client: TcpStream,
    _place: Place,
) {
    let mut bytes = Vec::new();
    loop {
        let (answer, taken) = match unframe(&bytes) {
            Ok(Some((message, taken))) => (answer(served, exec, message).await, taken),
            Ok(None) => match tokio::time::timeout(REST, receive(&client, 4096)).await {
                Ok(Ok(more)) if !more.is_empty() => {
                    bytes.extend(more);
                    continue;
                }
                _ => return,
            },
            Err(_) => return lingerless(&client),
        };
        bytes.drain(..taken);
        let Some(answer) = answer else { return lingerless(&client) };
        if send(&client, &frame(&answer)).await.is_err() {
            return;
        }
    }
}

/// The answer to a question about a name that was looked up when the recording was made.
async fn recorded(served: &Arc<Served>, replay: &Finder, trip: Trip, query: &Query) -> Vec<u8> {
    match replay.name(query.name.as_str()) {
        Some(true) if query.kind == Kind::A => {
            let address: IpAddr = served.address_of(&query.name).await;
            trip.end(Verdict::Allowed).await;
            query.known(&[address], TTL)
        }
        Some(true) => query.known(&[], TTL),
        Some(false) => {
            trip.failed(NoAddress::Unknown).await;
            query.refuse(Code::NxDomain)
        }
        None => {
            let what = format!("to look up the name {}, which is not in the recording", query.name);
            trip.denied(&denied(what, Reason::NotRecorded)).await;
            query.refuse(Code::Refused)
        }
    }
}

/// The answer to a question, if it gets one.
async fn answer(
    served: &Arc<Served>,
    exec: Result<Option<ExecId>, Unattributed>,
    question: &[u8],
) -> Option<Vec<u8>> {
    let query = match Query::read(question) {
        Ok(query) => query,
        Err(NoQuery::Silence) => return None,
        Err(NoQuery::Reply(_, reply)) => {
            // Services are asked for by names that no host has, so this is nobody's fault.
            let trip = served.trip(exec.ok().flatten(), FlowKind::Dns, String::new(), None);
            served.limits.request().await.ok()?;
            trip.failed("not a question about the name of a host").await;
            return Some(reply);
        }
    };
    let trip = served.trip(exec.ok().flatten(), FlowKind::Dns, query.name.to_string(), None);
    let what = || format!("to look up the name {}", query.name);
    match served.limits.request().await {
        Ok(()) => {}
        Err(reached) if reached.is_haste() => {
            served.turned_away(reached);
            return Some(query.refuse(Code::Refused));
        }
        Err(reached) => {
            trip.denied(&denied(what(), reached.into())).await;
            return Some(query.refuse(Code::Refused));
        }
    }
    if exec.is_err() {
        trip.denied(&denied(what(), Reason::Unattributed)).await;
        return Some(query.refuse(Code::Refused));
    }
    if let Some(unrecorded) = served.is_unrecorded(&what()) {
        trip.denied(&unrecorded).await;
        return Some(query.refuse(Code::Refused));
    }
    if let Some(replay) = &served.replay {
        return Some(recorded(served, replay, trip, &query).await);
    }
    let policy = served.policy().borrow().clone()?;
    if let Err(denied) = decide::name(&policy, &query.name) {
        trip.denied(&denied).await;
        return Some(query.refuse(Code::Refused));
    }
    if query.kind != Kind::A {
        if query.kind != Kind::Aaaa {
            trip.end(Verdict::Allowed).await;
        }
        // Whatever else is asked has no answer: one address is enough, and nothing tells how to hide the name.
        return Some(query.known(&[], TTL));
    }
    let found = served.look_up(&query.name).await;
    if let Some(recorder) = &served.recorder {
        recorder.lookup(&query.name, found.is_ok());
    }
    match found {
        Ok(_) => {
            let address: IpAddr = served.address_of(&query.name).await;
            trip.end(Verdict::Allowed).await;
            Some(query.known(&[address], TTL))
        }
        Err(error) => {
            trip.failed(error).await;
            let code = match error {
                NoAddress::Unknown => Code::NxDomain,
                NoAddress::NoAnswer => Code::ServFail,
            };
            Some(query.refuse(code))
        }
    }
}
