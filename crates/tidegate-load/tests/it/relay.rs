//! The least that a load can run against: welcomes everybody and passes the bytes of publishers on to all subscribers.
//!
//! It never looks for the bounds of packets, so that it is faster than any broker; only one publisher can therefore be there.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A relay for MQTT 3.1.1 and QoS 0. Its threads end with their connections, its listener with the process.
pub(crate) fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a listener has an address");
    let subscribers = Arc::new(Mutex::new(Vec::new()));
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let subscribers = Arc::clone(&subscribers);
            thread::spawn(move || serve(socket, &subscribers));
        }
    });
    address
}

fn serve(mut socket: TcpStream, subscribers: &Mutex<Vec<TcpStream>>) -> Option<()> {
    let mut buffer = vec![0; 256 << 10];
    socket.set_nodelay(true).ok()?;
    socket.read(&mut buffer).ok()?; // CONNECT
    socket.write_all(&[0x20, 2, 0, 0]).ok()?;
    loop {
        let bytes = socket.read(&mut buffer).ok().filter(|&bytes| bytes > 0)?;
        match buffer[0] {
            0x82 => {
                socket.write_all(&[0x90, 3, buffer[2], buffer[3], 0]).ok()?;
                subscribers.lock().ok()?.push(socket.try_clone().ok()?);
            }
            0xE0 if bytes == 2 => return None,
            _ => {
                for subscriber in &mut *subscribers.lock().ok()? {
                    subscriber.write_all(&buffer[..bytes]).ok()?;
                }
            }
        }
    }
}
