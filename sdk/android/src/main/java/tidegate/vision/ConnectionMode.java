package tidegate.vision;

/** How images travel. */
public enum ConnectionMode {
    /** A request of HTTP for each image, over a connection that is kept. */
    REST,
    /** One WebSocket that stays: least delay. */
    WEBSOCKET,
    /** One TCP connection that stays, in the older protocol of its own; without TLS and without a password. */
    PERSISTENT_TCP
}
