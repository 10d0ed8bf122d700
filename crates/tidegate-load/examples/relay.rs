//! A target for `load` that costs next to nothing, to measure the generator itself: prints its address and runs until its input
//! ends. It takes one publisher with MQTT 3.1.1 and QoS 0, and any number of subscribers.

#[path = "../tests/it/relay.rs"]
mod relay;

fn main() {
    println!("{}", relay::start());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink()); // an input that breaks has ended
}
