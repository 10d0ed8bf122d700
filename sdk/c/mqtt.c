/* See mqtt.h. Clauses are those of MQTT 3.1.1. */
#define _POSIX_C_SOURCE 200809L

#include "mqtt.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECT = 1, CONNACK = 2, PUBLISH = 3, PUBACK = 4, PINGREQ = 12, PINGRESP = 13, DISCONNECT = 14 };

static const int CONNECT_MS_MAX = 10000;
static const int WAIT_MS_MIN = 500;
static const int WAIT_MS_MAX = 30000;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Writing a packet: each of these returns the new end, or NULL once there was no room. */

static uint8_t *put(uint8_t *at, const uint8_t *end, const void *bytes, size_t count)
{
    if (at == NULL || (size_t)(end - at) < count)
        return NULL;
    memcpy(at, bytes, count);
    return at + count;
}

static uint8_t *put_u16(uint8_t *at, const uint8_t *end, uint16_t value)
{
    uint8_t bytes[2] = { (uint8_t)(value >> 8), (uint8_t)value };
    return put(at, end, bytes, sizeof bytes);
}

static uint8_t *put_text(uint8_t *at, const uint8_t *end, const char *text)
{
    size_t count = strlen(text);
    if (count > UINT16_MAX)
        return NULL;
    return put(put_u16(at, end, (uint16_t)count), end, text, count);
}

/* Puts the fixed header before a body that was written behind room for it; returns the bytes of the packet, 0 if there was no room. */
static size_t finish(uint8_t *packet, uint8_t first, const uint8_t *body, const uint8_t *end)
{
    if (end == NULL)
        return 0;
    size_t rest = (size_t)(end - body);
    size_t bytes = 0;
    packet[bytes++] = first;
    do { /* 2.2.3: seven bits a byte, the lowest first */
        packet[bytes++] = (uint8_t)((rest & 127) | (rest > 127 ? 128 : 0));
        rest >>= 7;
    } while (rest > 0);
    memmove(packet + bytes, body, (size_t)(end - body));
    return bytes + (size_t)(end - body);
}

enum { HEAD_BYTES = 5 };

static void down(struct mqtt *mqtt, const char *why)
{
    if (mqtt->state == MQTT_CONNECTING || mqtt->state == MQTT_OPENING)
        mqtt->tries++;
    if (mqtt->socket >= 0)
        close(mqtt->socket);
    mqtt->socket = -1;
    mqtt->state = MQTT_DOWN;
    mqtt->out_bytes = 0;
    mqtt->in_bytes = 0;
    snprintf(mqtt->why, sizeof mqtt->why, "%s", why);
    /* A third more or less, so that a thousand devices do not come back in one moment. */
    mqtt->due_ms = now_ms() + mqtt->wait_ms * 2 / 3 + rand() % (mqtt->wait_ms * 2 / 3 + 1);
    mqtt->wait_ms = mqtt->wait_ms * 2 < WAIT_MS_MAX ? mqtt->wait_ms * 2 : WAIT_MS_MAX;
}

/* Hands bytes to the socket as far as it takes them now. */
static void flush(struct mqtt *mqtt)
{
    while (mqtt->out_bytes > 0) {
        ssize_t sent = send(mqtt->socket, mqtt->out, mqtt->out_bytes, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                down(mqtt, strerror(errno));
            return;
        }
        mqtt->out_bytes -= (size_t)sent;
        memmove(mqtt->out, mqtt->out + sent, mqtt->out_bytes);
        mqtt->sent_ms = now_ms();
    }
}

static bool queue_out(struct mqtt *mqtt, const uint8_t *packet, size_t bytes)
{
    if (sizeof mqtt->out - mqtt->out_bytes < bytes)
        return false;
    memcpy(mqtt->out + mqtt->out_bytes, packet, bytes);
    mqtt->out_bytes += bytes;
    return true;
}

/*
 * Begins with the address behind those that were tried in vain: a name may have several, such as localhost one of IPv6, where a broker of IPv4
 * does not answer, and that only shows later.
 */
static void open_socket(struct mqtt *mqtt)
{
    mqtt->state = MQTT_CONNECTING;
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(mqtt->settings.host, mqtt->settings.port, &hints, &found);
    if (failed != 0) {
        down(mqtt, gai_strerror(failed));
        return;
    }
    unsigned count = 0;
    for (struct addrinfo *each = found; each != NULL; each = each->ai_next)
        count++;
    unsigned skipped = count == 0 ? 0 : mqtt->tries % count;
    struct addrinfo *from = found;
    for (; skipped > 0; skipped--)
        from = from->ai_next;
    int error = ENOENT;
    for (struct addrinfo *each = from; each != NULL; each = each->ai_next) {
        int opened = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
        if (opened < 0) {
            error = errno;
            continue;
        }
        int yes = 1;
        setsockopt(opened, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        fcntl(opened, F_SETFL, fcntl(opened, F_GETFL) | O_NONBLOCK);
        if (connect(opened, each->ai_addr, each->ai_addrlen) == 0 || errno == EINPROGRESS) {
            mqtt->socket = opened;
            break;
        }
        error = errno;
        close(opened);
    }
    freeaddrinfo(found);
    if (mqtt->socket < 0) {
        down(mqtt, strerror(error));
        return;
    }
    mqtt->due_ms = now_ms() + CONNECT_MS_MAX;
}

/* 3.1: the session stays with the broker, so that nothing is asked of it twice. */
static void say_connect(struct mqtt *mqtt)
{
    const struct mqtt_settings *settings = &mqtt->settings;
    uint8_t packet[MQTT_PACKET_BYTES_MAX];
    const uint8_t *end = packet + sizeof packet;
    uint8_t *body = packet + HEAD_BYTES;
    uint8_t flags = 0;
    if (settings->will_topic != NULL)
        flags |= 0x04 | 0x08 | 0x20; /* a will of QoS 1, retained */
    if (settings->user != NULL)
        flags |= 0x80;
    if (settings->password != NULL)
        flags |= 0x40;
    uint8_t level_and_flags[2] = { 4, flags };
    uint8_t *at = put_text(body, end, "MQTT");
    at = put(at, end, level_and_flags, sizeof level_and_flags);
    at = put_u16(at, end, settings->keep_alive_s);
    at = put_text(at, end, settings->client_id);
    if (settings->will_topic != NULL)
        at = put_text(put_text(at, end, settings->will_topic), end, settings->will_payload);
    if (settings->user != NULL)
        at = put_text(at, end, settings->user);
    if (settings->password != NULL)
        at = put_text(at, end, settings->password);
    size_t bytes = finish(packet, CONNECT << 4, body, at);
    if (bytes == 0) {
        down(mqtt, "the names and the password are too long");
        return;
    }
    mqtt->state = MQTT_OPENING;
    mqtt->due_ms = now_ms() + CONNECT_MS_MAX;
    queue_out(mqtt, packet, bytes);
    flush(mqtt);
}

static struct mqtt_message *at_place(struct mqtt *mqtt, size_t place)
{
    return &mqtt->queue[(mqtt->first + place) % MQTT_QUEUE_MAX];
}

static void drop_first(struct mqtt *mqtt)
{
    mqtt->first = (mqtt->first + 1) % MQTT_QUEUE_MAX;
    mqtt->count--;
    if (mqtt->next > 0)
        mqtt->next--;
}

static void send_queue(struct mqtt *mqtt)
{
    while (mqtt->state == MQTT_UP && mqtt->next < mqtt->count) {
        struct mqtt_message *message = at_place(mqtt, mqtt->next);
        if (message->is_acknowledged) {
            mqtt->next++;
            continue;
        }
        if (message->was_sent)
            message->packet[0] |= 0x08; /* 3.3.1.1: it may have come before */
        if (!queue_out(mqtt, message->packet, message->bytes))
            break;
        message->was_sent = true;
        mqtt->next++;
    }
    if (mqtt->state == MQTT_UP)
        flush(mqtt);
}

static const char *refusal(uint8_t code)
{
    static const char *const words[] = { "accepted", "the broker does not speak MQTT 3.1.1", "the broker refuses the client id",
                                         "the broker is not ready", "user or password is wrong", "the device may not connect" };
    return code < sizeof words / sizeof words[0] ? words[code] : "the broker refuses the connection";
}

/* Handles one packet; returns true if it is the acceptance of the connection. */
static bool take(struct mqtt *mqtt, uint8_t first, const uint8_t *body, size_t bytes)
{
    int kind = first >> 4;
    if (mqtt->state == MQTT_OPENING) {
        if (kind != CONNACK || bytes < 2) {
            down(mqtt, "the other side speaks no MQTT");
            return false;
        }
        /* A broker that refuses is the right one all the same: it is asked again, and no other address. */
        mqtt->state = MQTT_UP;
        if (body[1] != 0) {
            down(mqtt, refusal(body[1]));
            return false;
        }
        mqtt->tries = 0;
        mqtt->wait_ms = WAIT_MS_MIN;
        mqtt->next = 0; /* 4.4: all that was not acknowledged, in its order */
        return true;
    }
    if (kind == PUBACK && bytes >= 2) {
        uint16_t id = (uint16_t)(body[0] << 8 | body[1]);
        for (size_t place = 0; place < mqtt->count; place++)
            if (at_place(mqtt, place)->id == id)
                at_place(mqtt, place)->is_acknowledged = true;
        while (mqtt->count > 0 && at_place(mqtt, 0)->is_acknowledged)
            drop_first(mqtt);
    }
    /* An answer to a ping has done its work by coming; nothing else was asked for. */
    return false;
}

static bool receive(struct mqtt *mqtt)
{
    bool was_accepted = false;
    for (;;) {
        ssize_t got = recv(mqtt->socket, mqtt->in + mqtt->in_bytes, sizeof mqtt->in - mqtt->in_bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return was_accepted;
        if (got <= 0) {
            down(mqtt, got == 0 ? "the broker closed the connection" : strerror(errno));
            return was_accepted;
        }
        mqtt->in_bytes += (size_t)got;
        mqtt->received_ms = now_ms();
        for (;;) {
            size_t rest = 0, head = 1;
            bool is_whole = false;
            for (; head < mqtt->in_bytes && head < HEAD_BYTES && !is_whole; head++) {
                rest |= (size_t)(mqtt->in[head] & 127) << 7 * (head - 1);
                is_whole = (mqtt->in[head] & 128) == 0;
            }
            if (is_whole ? head + rest > sizeof mqtt->in : head == HEAD_BYTES) {
                down(mqtt, "the broker sent what was not asked for");
                return was_accepted;
            }
            if (!is_whole || mqtt->in_bytes < head + rest)
                break;
            was_accepted |= take(mqtt, mqtt->in[0], mqtt->in + head, rest);
            if (mqtt->state == MQTT_DOWN)
                return false;
            mqtt->in_bytes -= head + rest;
            memmove(mqtt->in, mqtt->in + head + rest, mqtt->in_bytes);
        }
    }
}

static void connected(struct mqtt *mqtt)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(mqtt->socket, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
        error = errno;
    if (error != 0)
        down(mqtt, strerror(error));
    else
        say_connect(mqtt);
}

/* Pings in time, and gives up a connection that is silent. Returns ms until it has to be asked again. */
static int64_t keep_alive(struct mqtt *mqtt)
{
    int64_t now = now_ms();
    int64_t keep_ms = mqtt->settings.keep_alive_s * INT64_C(1000);
    if (mqtt->state == MQTT_DOWN)
        return mqtt->due_ms - now;
    if (mqtt->state != MQTT_UP) {
        if (now >= mqtt->due_ms)
            down(mqtt, "no answer in time");
        return mqtt->due_ms - now;
    }
    if (keep_ms == 0)
        return INT64_MAX;
    int64_t heard_ms = mqtt->received_ms > mqtt->sent_ms ? mqtt->received_ms : mqtt->sent_ms;
    /* Something was sent and nothing came since: at most half of that time again. */
    if (mqtt->sent_ms > mqtt->received_ms && now - mqtt->received_ms >= keep_ms + keep_ms / 2) {
        down(mqtt, "the broker is silent");
        return mqtt->due_ms - now;
    }
    if (now - heard_ms >= keep_ms / 2) {
        uint8_t ping[2] = { PINGREQ << 4, 0 };
        if (queue_out(mqtt, ping, sizeof ping))
            flush(mqtt);
        return keep_ms / 2;
    }
    return heard_ms + keep_ms / 2 - now;
}

void mqtt_begin(struct mqtt *mqtt, const struct mqtt_settings *settings)
{
    memset(mqtt, 0, sizeof *mqtt);
    mqtt->settings = *settings;
    mqtt->socket = -1;
    mqtt->wait_ms = WAIT_MS_MIN;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    srand((unsigned)(now.tv_nsec ^ getpid()));
}

bool mqtt_publish(struct mqtt *mqtt, const char *topic, const char *payload, bool retain)
{
    uint8_t packet[MQTT_PACKET_BYTES_MAX];
    const uint8_t *end = packet + sizeof packet;
    uint8_t *body = packet + HEAD_BYTES;
    uint16_t id = mqtt->last_id == UINT16_MAX ? 1 : (uint16_t)(mqtt->last_id + 1);
    uint8_t *at = put_u16(put_text(body, end, topic), end, id);
    at = put(at, end, payload, strlen(payload));
    size_t bytes = finish(packet, (uint8_t)(PUBLISH << 4 | 0x02 | (retain ? 1 : 0)), body, at);
    if (bytes == 0)
        return false;
    if (mqtt->count == MQTT_QUEUE_MAX) {
        drop_first(mqtt);
        mqtt->dropped++;
    }
    mqtt->last_id = id;
    struct mqtt_message *message = at_place(mqtt, mqtt->count++);
    message->id = id;
    message->bytes = (uint16_t)bytes;
    message->was_sent = false;
    message->is_acknowledged = false;
    memcpy(message->packet, packet, bytes);
    return true;
}

bool mqtt_run(struct mqtt *mqtt, int timeout_ms)
{
    bool was_accepted = false;
    int64_t end = now_ms() + timeout_ms;
    for (;;) {
        if (mqtt->state == MQTT_DOWN && now_ms() >= mqtt->due_ms)
            open_socket(mqtt);
        send_queue(mqtt);
        int64_t due = keep_alive(mqtt);
        int64_t left = end - now_ms();
        if (was_accepted || left < 0)
            return was_accepted;
        struct pollfd ready = { .fd = mqtt->socket, .events = POLLIN };
        if (mqtt->state == MQTT_CONNECTING)
            ready.events = POLLOUT;
        else if (mqtt->out_bytes > 0)
            ready.events = POLLIN | POLLOUT;
        int64_t wait = due < left ? due : left;
        /* poll skips a negative descriptor, and waits all the same. A signal ends the call early. */
        if (poll(&ready, 1, wait < 0 ? 0 : (int)wait) < 0)
            return was_accepted;
        if (ready.revents == 0) {
            if (left == 0)
                return was_accepted;
            continue;
        }
        if (mqtt->state == MQTT_CONNECTING)
            connected(mqtt);
        else {
            flush(mqtt);
            if (mqtt->state != MQTT_DOWN)
                was_accepted |= receive(mqtt);
        }
    }
}

size_t mqtt_waiting(const struct mqtt *mqtt)
{
    return mqtt->count;
}

void mqtt_end(struct mqtt *mqtt)
{
    if (mqtt->state == MQTT_UP) {
        uint8_t goodbye[2] = { DISCONNECT << 4, 0 };
        if (queue_out(mqtt, goodbye, sizeof goodbye))
            flush(mqtt);
    }
    if (mqtt->socket >= 0)
        close(mqtt->socket);
    mqtt->socket = -1;
    mqtt->state = MQTT_DOWN;
}
