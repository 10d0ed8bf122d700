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
    let _connect_bytes = socket.read(&mut buffer).ok()?;
    socket.write_all(&[0x20, 2, 0, 0]).ok()?;
    // The first packet tells who this is: later reads begin in the middle of one.
    let mut bytes = socket.read(&mut buffer).ok()?;
    if buffer[0] == 0x82 {
        // Nothing is passed on between its SUBACK and its place among the subscribers.
        let mut subscribers = subscribers.lock().ok()?;
        socket.write_all(&[0x90, 3, buffer[2], buffer[3], 0]).ok()?;
        subscribers.push(socket);
        return None; // it says nothing more that matters
    }
    while bytes > 0 && buffer[..bytes] != [0xE0, 0] {
        // A subscriber that has gone is no reason to stop for the others.
        let mut subscribers = subscribers.lock().ok()?;
        subscribers.retain_mut(|socket| socket.write_all(&buffer[..bytes]).is_ok());
        drop(subscribers);
        bytes = socket.read(&mut buffer).ok()?;
    }
    None
}
