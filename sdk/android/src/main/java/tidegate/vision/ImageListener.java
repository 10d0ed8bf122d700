package tidegate.vision;

/** Told what becomes of images, on the executor that the sender was made with. */
public interface ImageListener {
    /** An image was answered. */
    void onResult(CameraMode mode, Result result);

    /** An image has no answer. The sender connects again by itself. */
    void onError(VisionException error);
}
