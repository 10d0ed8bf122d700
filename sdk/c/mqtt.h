/*
 * A small MQTT 3.1.1 client for devices: one connection, messages of QoS 1 out, a will; POSIX sockets and nothing else.
 *
 *   mqtt_publish ──▶ queue ──▶ socket        mqtt_run does all the rest: it connects, sends, takes acknowledgements,
 *                      ▲          │          pings, and connects again behind a broken connection.
 *                      └─ PUBACK ─┘
 *
 * Always true: a message leaves the queue only when the broker has acknowledged it, or when a newer one needs its place; no call waits
 * longer than its timeout, but for the look-up of the broker's name; no memory is allocated.
 *
 * It has no TLS. Where the broker is beyond the device's own network, let stunnel carry the connection, or take a library that has TLS.
 */
#ifndef TIDEGATE_MQTT_H
#define TIDEGATE_MQTT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MQTT_PACKET_BYTES_MAX = 1024, /* of one message, its topic included */
    MQTT_QUEUE_MAX = 64,          /* messages that the broker has not acknowledged */
    MQTT_OUT_BYTES_MAX = 4096,
    MQTT_IN_BYTES_MAX = 256
};

struct mqtt_settings {
    const char *host;
    const char *port;
    const char *client_id; /* names the session, which the broker keeps: one for each device */
    const char *user;      /* NULL for none */
    const char *password;  /* NULL for none */
    const char *will_topic; /* the broker publishes this, retained, when the device is gone; NULL for none */
    const char *will_payload;
    uint16_t keep_alive_s; /* the broker takes the device for gone after one and a half times this; 0 for never */
};

struct mqtt_message {
    uint16_t id;
    uint16_t bytes;
    bool was_sent;
    bool is_acknowledged;
    uint8_t packet[MQTT_PACKET_BYTES_MAX];
};

/* All its fields are its own. */
struct mqtt {
    struct mqtt_settings settings;
    enum { MQTT_DOWN, MQTT_CONNECTING, MQTT_OPENING, MQTT_UP } state;
    int socket;
    int64_t due_ms;      /* next try while it is down, and the end of the time to connect in */
    int64_t sent_ms;     /* when something was last sent */
    int64_t received_ms; /* when something last came */
    int wait_ms;         /* before the next try */
    unsigned tries;      /* that failed since the broker last accepted: each begins at another of its addresses */
    uint16_t last_id;
    size_t first;    /* of the queue */
    size_t count;    /* in the queue */
    size_t next;     /* from the first, to be sent */
    uint64_t dropped;
    struct mqtt_message queue[MQTT_QUEUE_MAX];
    uint8_t out[MQTT_OUT_BYTES_MAX];
    size_t out_bytes;
    uint8_t in[MQTT_IN_BYTES_MAX];
    size_t in_bytes;
    char why[128]; /* the last failure, for people */
};

/* Begins, without connecting. The strings of `settings` must outlive it. */
void mqtt_begin(struct mqtt *mqtt, const struct mqtt_settings *settings);

/*
 * Queues one message of QoS 1; the broker keeps it for later subscribers if `retain`. Where the queue is full, its oldest message goes, and
 * `dropped` counts. Returns false if the message is too long.
 */
bool mqtt_publish(struct mqtt *mqtt, const char *topic, const char *payload, bool retain);

/* Does what is due, and waits for more to do, at most `timeout_ms`. Returns true if the broker was reached meanwhile: announce yourself. */
bool mqtt_run(struct mqtt *mqtt, int timeout_ms);

/* Messages that the broker has not acknowledged. */
size_t mqtt_waiting(const struct mqtt *mqtt);

/* Says goodbye, so that the will is not published, and closes. */
void mqtt_end(struct mqtt *mqtt);

#endif
