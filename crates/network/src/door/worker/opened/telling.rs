//! Bodies of answers, on their way to clients: from the host, with whoever listens to them, or from the cache.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::super::cache::{Ear, FromDisk};
use super::super::tape::Pause;
use super::Passing;
use super::upstream::Upstream;
use crate::recording::Way;

/// A body that comes from the host, the connection that it comes on, and whoever listens.
pub(super) struct FromHost {
    pub(super) body: Incoming,
    pub(super) upstream: Option<Upstream>,
    pub(super) ear: Option<Ear>,
}

/// Where the body of an answer comes from.
pub(super) enum Source {
    Host(Box<FromHost>),
    /// The cache.
    Disk(Box<FromDisk>),
}

impl Source {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Host(host) => host.body.is_end_stream(),
            Self::Disk(body) => body.left() == 0,
        }
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let FromHost { body, ear, .. } = match self {
            Self::Host(host) => &mut **host,
            Self::Disk(body) => {
                return body.poll_frame(context).map(|frame| Some(frame?.map_err(Broken::from)));
            }
        };
        if let Some(listener) = ear
            && !ready!(listener.poll(context))
        {
            *ear = None;
        }
        let polled = Pin::new(body).poll_frame(context);
        if let (Poll::Ready(Some(Ok(frame))), Some(listener)) = (&polled, &mut *ear)
            && let Some(bytes) = frame.data_ref()
            && !listener.hear(bytes)
        {
            *ear = None;
        }
        polled.map(|frame| Some(frame?.map_err(Broken::from)))
    }
}

/// Why a body did not come to its end.
type Broken = Box<dyn Error + Send + Sync>;

/// The body of an answer.
pub(super) struct Telling {
    pub(super) source: Source,
    pub(super) passing: Arc<Passing>,
    pub(super) pause: Pause,
}

impl Body for Telling {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = &mut *self;
        let taped = this.passing.taped.get();
        ready!(this.pause.poll(taped, context));
        let polled = this.source.poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(bytes) = frame.data_ref() {
                    let tally = match this.source {
                        Source::Host(_) => &this.passing.received,
                        Source::Disk(_) => &this.passing.cached,
                    };
                    tally.add(bytes.len() as u64);
                }
                taped.inspect(|taped| taped.frame(Way::In, frame));
            }
            Poll::Ready(Some(Err(error))) => this.passing.failed(error.to_string()),
            _ => {}
        }
        let is_over = matches!(polled, Poll::Ready(None)) || this.source.is_end_stream();
        if let (true, Source::Host(host)) = (is_over, &mut this.source) {
            if let Some(upstream) = host.upstream.take() {
                this.passing.opened.upstreams.give_back(upstream);
            }
            if let Some(ear) = host.ear.take() {
                ear.end();
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Host(host) => host.body.size_hint(),
            Source::Disk(body) => body.size_hint(),
        }
    }
}
