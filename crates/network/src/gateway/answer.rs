//! A call on its way back: the key is taken out, what was used is read, and at the end it is told.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use belljar_core::{Call, SandboxId};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::time::Instant;

use super::budget::Spent;
use super::customer::{Aside, Place};
use super::headers::{is_hop, without};
use super::price::Prices;
use super::redact::Redactor;
use super::refusal::{Cause, Refusal};
use super::service::Gateway;
use super::upstream::{Answer, Sending};
use super::usage::{Reader, Wire};
use crate::policy::shortened;

/// What is sent back.
pub(super) type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// A call that is open; it is told when this is dropped.
pub(super) struct Open {
    pub(super) gateway: Arc<Gateway>,
    pub(super) sandbox: SandboxId,
    pub(super) told: Call,
    pub(super) began: Instant,
    pub(super) aside: Option<Aside>,
    /// Whether something of it may have been sent on.
    pub(super) is_sent: bool,
    /// Whether it was asked, and what was answered is not known.
    pub(super) is_unanswered: bool,
    pub(super) _place: Option<Place>,
}

impl Open {
    pub(super) fn refuse(mut self, wire: Option<Wire>, cause: Cause) -> Reply {
        self.told.refused = !cause.is_upstream() && !self.is_sent;
        self.is_unanswered = cause.is_unanswered();
        self.told.error = Some(match self.told.error.take() {
            Some(why) => format!("{}: {why}", cause.as_str()),
            None => cause.as_str().to_owned(),
        });
        let (what, request_id) = (self.told.request.clone(), self.told.request_id.clone());
        let answer = Refusal { what, cause, request_id }.answer(wire);
        self.told.status = answer.status;
        let mut headers = HeaderMap::new();
        for (name, value) in &answer.headers {
            if let Ok(value) = HeaderValue::try_from(value.as_str()) {
                headers.insert(*name, value);
            }
        }
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::FORBIDDEN);
        reply(status, headers, Bytes::from(answer.body))
    }

    /// What is to be believed of it, should nobody ever say more.
    pub(super) fn as_it_may_end(&self, most: Spent) -> Call {
        Call {
            free: false,
            error: Some("nobody knows how it ended: the gateway died while it was under way".into()),
            counted_tokens: most.tokens,
            counted_nano_dollars: most.nano_dollars,
            ..self.told.clone()
        }
    }

    /// Passes an answer on.
    pub(super) fn pass(
        mut self,
        response: Response<Answer>,
        (wire, prices): (Option<Wire>, Option<Prices>),
        keys: Vec<String>,
        timeout: Duration,
    ) -> Reply {
        let (mut head, body) = response.into_parts();
        self.told.status = head.status.as_u16();
        let hop: Vec<HeaderName> =
            head.headers.keys().filter(|name| is_hop(name.as_str())).cloned().collect();
        for name in hop {
            head.headers.remove(name);
        }
        for value in head.headers.values_mut() {
            if let Some(clean) = without(value, &keys) {
                *value = clean;
            }
        }
        if let Ok(id) = HeaderValue::try_from(self.told.request_id.as_str()) {
            head.headers.insert("x-belljar-request-id", id);
        }
        // Its words for the status may be anything.
        head.extensions.clear();
        let reader = wire.map(Reader::new);
        let redactor = Redactor::new(keys.iter().map(String::as_str));
        // One that has none is not asked for it.
        let is_over = body.is_end_stream();
        let passing = Passing {
            body,
            redactor,
            reader,
            prices,
            late: Box::pin(tokio::time::sleep(timeout)),
            timeout,
            is_over,
            open: self,
        };
        Response::from_parts(head, passing.boxed_unsync())
    }

    /// Says what counts against budgets. Whoever breaks off before a provider has said what was used does not get it for nothing,
    /// whether that is the caller or the provider.
    fn count(&mut self, most: Spent) {
        let told = &mut self.told;
        if told.refused || (told.status >= 400 && !self.is_unanswered) {
            return;
        }
        let used = told.usage.map_or(0, |usage| usage.total());
        let paid = told.nano_dollars.unwrap_or(0);
        let known = told.is_final || told.model.is_none();
        told.counted_tokens = if known { used } else { used.max(most.tokens) };
        told.counted_nano_dollars = if known { paid } else { paid.max(most.nano_dollars) };
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(aside) = self.aside.take() {
            self.count(aside.most);
            aside.settle(Spent::of(&self.told));
        }
        if self.told.status == 0 && self.told.error.is_none() {
            self.told.error = Some("the caller broke off before there was an answer".into());
        }
        self.told.duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.gateway.tell(&self.sandbox, self.told.clone());
    }
}

/// The body of an answer on its way in.
struct Passing {
    body: Answer,
    redactor: Redactor,
    /// Where a model was asked.
    reader: Option<Reader>,
    prices: Option<Prices>,
    late: Pin<Box<tokio::time::Sleep>>,
    timeout: Duration,
    is_over: bool,
    open: Open,
}

impl Body for Passing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            let polled = Pin::new(&mut self.body).poll_frame(context);
            let Poll::Ready(frame) = polled else {
                if self.late.as_mut().poll(context).is_ready() {
                    self.is_over = true;
                    self.open.told.error = Some("the upstream said nothing for too long".into());
                    return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
                }
                return Poll::Pending;
            };
            let next = Instant::now() + self.timeout;
            self.late.as_mut().reset(next);
            let bytes = match frame {
                None => {
                    self.is_over = true;
                    let rest = self.redactor.finish();
                    if let Some(reader) = &mut self.reader {
                        reader.push(&rest);
                    }
                    rest
                }
                Some(Err(error)) => {
                    self.is_over = true;
                    self.open.told.error = Some(shortened(&format!("the upstream broke off: {error}")));
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let mut passed = self.redactor.pass(&data);
                        if self.body.is_end_stream() {
                            // Nobody asks for what comes after all that was announced.
                            self.is_over = true;
                            passed.extend(self.redactor.finish());
                        }
                        if let Some(reader) = &mut self.reader {
                            reader.push(&passed);
                        }
                        passed
                    }
                    // Trailers are nobody's business here.
                    Err(_) => Vec::new(),
                },
            };
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from(bytes)))));
            }
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let told = &mut self.open.told;
        let Some(reader) = &mut self.reader else {
            told.is_final = true;
            return;
        };
        if self.is_over && told.error.is_none() {
            reader.end();
        }
        let report = reader.report();
        told.usage = report.usage.usage();
        told.is_final = report.usage.is_final();
        let cost = self.prices.as_ref().and_then(|prices| prices.cost_of(&report));
        told.nano_dollars = cost.map(|cost| cost.0);
        if told.error.is_none() {
            told.error = report
                .error
                .as_ref()
                .map(|failure| shortened(&format!("{}: {}", failure.kind, failure.message)));
        }
        if told.error.is_none() && !self.is_over {
            told.error = Some("the caller broke off".into());
        }
    }
}

pub(super) fn reply(status: StatusCode, headers: HeaderMap, body: Bytes) -> Reply {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

pub(super) fn full(bytes: Bytes) -> Sending {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
