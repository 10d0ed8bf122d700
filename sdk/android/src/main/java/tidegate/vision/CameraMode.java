package tidegate.vision;

/** A detector of the node, by its path over HTTP and its number over TCP. */
public enum CameraMode {
    /** Where faces are. */
    FACE_DETECTION("/detector/detect/", 1),
    /** Whose face it is, of those that were taught. */
    FACE_RECOGNITION("/recognizer/predict/", 2),
    /** The points of each body. */
    POSE_DETECTION("/openpose/detect/", 3),
    /** Things, with their names. */
    OBJECT_DETECTION("/object/detect/", 4);

    final String path;
    final int opcode;

    CameraMode(String path, int opcode) {
        this.path = path;
        this.opcode = opcode;
    }
}
