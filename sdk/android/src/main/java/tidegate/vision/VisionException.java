package tidegate.vision;

import java.io.IOException;

/** Why an image has no answer; its message is for people. */
public final class VisionException extends IOException {
    private static final long serialVersionUID = 1L;

    private final boolean isConnection;
    private final boolean isLasting;
    private final long retryAfterMs;

    VisionException(String message, boolean isConnection) {
        this(message, isConnection, isConnection, 0);
    }

    VisionException(String message, boolean isConnection, boolean isLasting, long retryAfterMs) {
        super(message);
        this.isConnection = isConnection;
        this.isLasting = isLasting;
        this.retryAfterMs = retryAfterMs;
    }

    /** Whether the server is not reached, so that the next image may fail for the same reason. */
    public boolean isConnection() {
        return isConnection;
    }

    /** Whether the next image would most likely fail for the same reason, so that there is a pause before it. */
    boolean isLasting() {
        return isLasting;
    }

    /** How long the server asks to be left alone, in ms; 0 if it does not. */
    public long retryAfterMs() {
        return retryAfterMs;
    }
}
