/*
 * A thermometer: reads a file of the kernel and publishes each reading by MQTT, QoS 1.
 *
 *     sensor -h edge.example -n pump1 -f /sys/class/thermal/thermal_zone0/temp
 *
 *     devices/pump1/reading   {"celsius":41.250,"at":1750000000123456789,"sequence":17}
 *     devices/pump1/status    online, or offline: retained; the broker says offline when the device is gone
 *
 * Readings that are taken while the broker is away wait, the newest 64 of them, and are sent when it is back. One may come twice:
 * `sequence` tells. The password is read from the environment, SENSOR_PASSWORD, since arguments are seen by everyone on the machine.
 */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mqtt.h"

static volatile sig_atomic_t is_told_to_stop;

static void stop(int number)
{
    (void)number;
    is_told_to_stop = 1;
}

/* Thousandths of a degree, as the kernel writes them. */
static bool read_sensor(const char *path, long *millicelsius)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    bool is_read = fscanf(file, "%ld", millicelsius) == 1;
    fclose(file);
    return is_read;
}

static int64_t nanos(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int usage(void)
{
    fputs("usage: sensor [-h HOST] [-p PORT] [-u USER] [-t TOPIC] [-i INTERVAL_MS] [-c COUNT] [-k KEEP_ALIVE_S] -n NAME -f FILE\n"
          "  HOST 127.0.0.1, PORT 1883, TOPIC devices, INTERVAL_MS 1000, KEEP_ALIVE_S 30; ends after COUNT readings, or at SIGTERM\n",
          stderr);
    return 2;
}

int main(int argc, char **argv)
{
    struct mqtt_settings settings = { .host = "127.0.0.1", .port = "1883", .keep_alive_s = 30 };
    const char *name = NULL, *file = NULL, *prefix = "devices";
    long interval_ms = 1000, count_max = 0;
    for (int option; (option = getopt(argc, argv, "h:p:u:t:i:c:n:f:k:")) != -1;) {
        switch (option) {
        case 'h': settings.host = optarg; break;
        case 'p': settings.port = optarg; break;
        case 'u': settings.user = optarg; break;
        case 't': prefix = optarg; break;
        case 'i': interval_ms = strtol(optarg, NULL, 10); break;
        case 'c': count_max = strtol(optarg, NULL, 10); break;
        case 'n': name = optarg; break;
        case 'f': file = optarg; break;
        case 'k': settings.keep_alive_s = (uint16_t)strtol(optarg, NULL, 10); break;
        default: return usage();
        }
    }
    if (name == NULL || file == NULL || interval_ms < 1 || count_max < 0)
        return usage();
    char reading_topic[256], status_topic[256];
    int longest = snprintf(reading_topic, sizeof reading_topic, "%s/%s/reading", prefix, name);
    snprintf(status_topic, sizeof status_topic, "%s/%s/status", prefix, name);
    if (longest >= (int)sizeof reading_topic) {
        fputs("sensor: the name and the topic are too long\n", stderr);
        return 2;
    }
    settings.client_id = name;
    settings.password = settings.user == NULL ? NULL : getenv("SENSOR_PASSWORD");
    settings.will_topic = status_topic;
    settings.will_payload = "offline";

    struct sigaction action = { .sa_handler = stop };
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);

    static struct mqtt mqtt;
    mqtt_begin(&mqtt, &settings);
    char why[sizeof mqtt.why] = "";
    long taken = 0;
    int64_t due = nanos(CLOCK_MONOTONIC);
    while (!is_told_to_stop && (count_max == 0 || taken < count_max || mqtt_waiting(&mqtt) > 0)) {
        int64_t now = nanos(CLOCK_MONOTONIC);
        if (now >= due && (count_max == 0 || taken < count_max)) {
            long millicelsius;
            if (read_sensor(file, &millicelsius)) {
                char payload[128];
                snprintf(payload, sizeof payload, "{\"celsius\":%s%ld.%03ld,\"at\":%" PRId64 ",\"sequence\":%ld}", millicelsius < 0 ? "-" : "",
                         labs(millicelsius) / 1000, labs(millicelsius) % 1000, nanos(CLOCK_REALTIME), taken);
                mqtt_publish(&mqtt, reading_topic, payload, false);
                taken++;
            } else
                fprintf(stderr, "sensor: %s has no number\n", file);
            due += interval_ms * INT64_C(1000000);
            if (due < now)
                due = now; /* the machine was asleep: the readings of that time are not made up for */
        }
        int64_t left_ms = (due - nanos(CLOCK_MONOTONIC)) / 1000000;
        if (count_max != 0 && taken >= count_max)
            left_ms = 50; /* none is due; the last acknowledgement ends the program soon */
        if (mqtt_run(&mqtt, left_ms < 0 ? 0 : left_ms > 1000 ? 1000 : (int)left_ms)) {
            fprintf(stderr, "sensor: connected to %s:%s\n", settings.host, settings.port);
            why[0] = '\0';
            mqtt_publish(&mqtt, status_topic, "online", true);
        } else if (mqtt.state == MQTT_DOWN && strcmp(why, mqtt.why) != 0) {
            memcpy(why, mqtt.why, sizeof why);
            fprintf(stderr, "sensor: not connected: %s; trying again\n", why);
        }
    }
    /* A goodbye keeps the will from being published: the device says itself that it is gone. */
    mqtt_publish(&mqtt, status_topic, "offline", true);
    int64_t end = nanos(CLOCK_MONOTONIC) + INT64_C(2000000000);
    is_told_to_stop = 0;
    while (mqtt_waiting(&mqtt) > 0 && nanos(CLOCK_MONOTONIC) < end && !is_told_to_stop)
        mqtt_run(&mqtt, 50);
    size_t lost = mqtt_waiting(&mqtt);
    mqtt_end(&mqtt);
    fprintf(stderr, "sensor: %ld readings, %" PRIu64 " dropped, %zu not acknowledged\n", taken, mqtt.dropped, lost);
    return lost == 0 ? 0 : 1;
}
