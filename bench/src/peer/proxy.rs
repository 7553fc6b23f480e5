//! A proxy that only copies: it looks at nothing, counts nothing, remembers nothing. Like the door's worker it is one thread.

use std::io;
use std::os::fd::AsFd;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};

/// How much is read at once, as at the door.
const PIECE: usize = 256 * 1024;

pub(crate) fn run(address: &str, server: &str) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = match address {
            "-" => adopt()?,
            address => TcpListener::bind(address).await?,
        };
        println!("ready");
        loop {
            let (client, _) = listener.accept().await?;
            let server = server.to_owned();
            tokio::spawn(async move {
                if let Err(error) = pass(client, &server).await {
                    eprintln!("belljar-peer: {error}");
                }
            });
        }
    })
}

/// The socket that listens at standard input.
fn adopt() -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn pass(mut client: TcpStream, server: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    copy_bidirectional_with_sizes(&mut client, &mut server, PIECE, PIECE).await.map(drop)
}
