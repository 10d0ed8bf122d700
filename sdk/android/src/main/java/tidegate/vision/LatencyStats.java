package tidegate.vision;

import java.util.Locale;

/** Figures over all images since the last {@link #reset}, in ms. */
public final class LatencyStats {
    private long count;
    private double min;
    private double max;
    private double mean;
    private double squares;

    LatencyStats() {}

    synchronized void add(double ms) {
        count++;
        min = count == 1 ? ms : Math.min(min, ms);
        max = Math.max(max, ms);
        // Welford: no sum that grows.
        double before = ms - mean;
        mean += before / count;
        squares += before * (ms - mean);
    }

    /** Forgets all. */
    public synchronized void reset() {
        count = 0;
        min = max = mean = squares = 0;
    }

    /** Images that were counted. */
    public synchronized long count() {
        return count;
    }

    /** Their average, in ms. */
    public synchronized double average() {
        return mean;
    }

    /** Their standard deviation, in ms. */
    public synchronized double deviation() {
        return count < 2 ? 0 : Math.sqrt(squares / (count - 1));
    }

    /** {@code min/avg/max/stddev = 41/53/78/7 ms}. */
    @Override
    public synchronized String toString() {
        return String.format(Locale.ROOT, "min/avg/max/stddev = %.0f/%.0f/%.0f/%.0f ms", min, mean, max, deviation());
    }
}
