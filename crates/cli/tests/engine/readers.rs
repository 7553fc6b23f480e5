//! Readers that are slow, vanish, or come back: whoever writes is not held up, and nothing is lost without being counted.

use std::sync::Arc;
use std::time::Duration;

use belljar_core::{
    ErrorCode, ExecEvent, ExecId, ExecRequest, Position, Provider, Sandbox, SandboxId, SandboxSpec, Stream,
    Termination,
};

use crate::surroundings::patience;
use crate::{House, runtime};

/// What one reader has had so far, and where it goes on.
#[derive(Default)]
struct Had {
    at: Position,
    bytes: Vec<u8>,
    missing: u64,
    ended: Option<Termination>,
}

impl Had {
    fn take(&mut self, event: ExecEvent) {
        self.take_of(event, &[]);
    }

    /// The same of output that repeats one line.
    fn take_of(&mut self, event: ExecEvent, line: &[u8]) {
        match event {
            ExecEvent::Output { stream, bytes } => {
                let expected = line.iter().cycle().skip(self.at.get(stream) as usize % line.len().max(1));
                assert!(bytes.iter().zip(expected).all(|(one, other)| one == other), "from {}", self.at);
                *self.at.of(stream) += bytes.len() as u64;
                self.bytes.extend_from_slice(&bytes);
            }
            ExecEvent::Gap { stream, bytes } => {
                *self.at.of(stream) += bytes;
                self.missing += bytes;
            }
            ExecEvent::Finished { termination, .. } => self.ended = Some(termination),
            ExecEvent::Started { .. } | ExecEvent::Denied(_) => {}
        }
    }

    /// Reads on until the end, or until so many more pieces have come, or the engine is gone.
    async fn read(&mut self, sandbox: &dyn Sandbox, exec: ExecId, pieces: usize) -> belljar_core::Result<()> {
        let handle = sandbox.execs()?.attach(exec, self.at).await?;
        for _ in 0..pieces {
            match handle.next().await? {
                Some(event) => self.take(event),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

#[test]
fn output_goes_on_across_restarts_without_loss_or_repetition() {
    const LINES: usize = 2000;
    let mut house = House::new();
    house.start(None);
    let (runtime, mut had) = (runtime(), Had::default());
    let id: SandboxId = house.create(600).parse().unwrap();
    let script = format!("for number in $(seq 1 {LINES}); do echo $number; sleep 0.002; done; exit 9");
    let exec = ExecId(house.begin(id.as_str(), &script).parse().unwrap());
    let mut restarts = 0;
    while had.ended.is_none() {
        let client = runtime.block_on(house.client());
        let sandbox = runtime.block_on(client.open(&id)).unwrap();
        // A reader is in the middle when the engine dies under it.
        let pieces = if restarts < 6 { 100 } else { usize::MAX };
        runtime
            .block_on(async {
                let reading = had.read(&*sandbox, exec, pieces);
                tokio::time::timeout(patience(Duration::from_secs(60)), reading).await.expect("in time")
            })
            .unwrap();
        if had.ended.is_none() {
            let waiting = std::thread::scope(|scope| {
                let reader = scope.spawn(|| runtime.block_on(had.read(&*sandbox, exec, usize::MAX)));
                house.kill();
                reader.join().unwrap()
            });
            match waiting {
                Ok(()) => assert!(had.ended.is_some()),
                Err(error) => assert_eq!(error.code, ErrorCode::Lost, "{error}"),
            }
            house.start(None);
            restarts += 1;
        }
    }
    assert!(restarts >= 3, "{restarts} restarts: it ended too soon");
    let whole: String = (1..=LINES).map(|number| format!("{number}\n")).collect();
    assert_eq!(String::from_utf8(had.bytes).unwrap(), whole);
    assert_eq!((had.missing, had.ended), (0, Some(Termination::Exited { code: 9 })));
}

#[test]
fn a_gigabyte_is_written_whatever_its_readers_do() {
    const GIGABYTE: u64 = 1_000_000_000;
    const LINE: &[u8] = b"0123456\n";
    let mut house = House::new();
    house.start(None);
    let runtime = runtime();
    runtime.block_on(async {
        let client = house.client().await;
        let sandbox: Arc<dyn Sandbox> = client.create(SandboxSpec::default()).await.unwrap();
        let mut request = ExecRequest::shell(format!("yes 0123456 | head -c {GIGABYTE}"));
        request.timeout = patience(Duration::from_secs(300));
        // Whoever started it vanishes in the middle.
        let handle = sandbox.execs().unwrap().start(request).await.unwrap();
        let Some(ExecEvent::Started { exec, .. }) = handle.next().await.unwrap() else { panic!("its start") };
        for _ in 0..10 {
            assert!(matches!(handle.next().await.unwrap(), Some(ExecEvent::Output { .. })));
        }
        drop(handle);
        let before = house.resident();
        // One takes next to nothing: its socket and its share of everyone's buffers are full, and stay so.
        let slow = sandbox.execs().unwrap().attach(exec, Position::START).await.unwrap();
        assert!(matches!(slow.next().await.unwrap(), Some(ExecEvent::Started { .. })));
        let mut trickle = Had::default();
        // One comes and goes, each time where it left.
        let mut returning = Had::default();
        let mut most = before;
        let mut visits = 0;
        while returning.ended.is_none() {
            returning.read(&*sandbox, exec, 200).await.unwrap();
            returning.bytes.clear();
            if visits % 50 == 0 {
                trickle.take_of(slow.next().await.unwrap().unwrap(), LINE);
            }
            visits += 1;
            most = most.max(house.resident());
        }
        assert!(visits > 3, "it did come back: {visits}");
        assert_eq!(returning.ended, Some(Termination::Exited { code: 0 }), "unharmed");
        assert_eq!(returning.at, Position { stdout: GIGABYTE, stderr: 0 }, "every byte was told or counted");
        // The slow one hears the rest at once, and it adds up as well.
        while let Some(event) = slow.next().await.unwrap() {
            trickle.take_of(event, LINE);
        }
        assert_eq!(trickle.at.get(Stream::Stdout), GIGABYTE);
        assert_eq!(trickle.bytes.len() as u64 + trickle.missing, GIGABYTE);
        assert!(trickle.missing > 0, "the control: more was written than is kept");
        assert!(
            trickle.bytes.chunks(8).all(|line| b"0123456\n".starts_with(line)),
            "in order, as far as kept"
        );
        assert!(most - before < 16 << 20, "the engine grew from {before} to {most} bytes");
        assert_eq!(
            sandbox.execs().unwrap().wait(exec).await.unwrap().termination,
            Termination::Exited { code: 0 }
        );
        sandbox.cleanup().await.unwrap();
    });
}
