package tidegate.vision;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** The answer about one image. Rectangles are left, top, right, bottom in pixels of the image that was sent. */
public final class Result {
    /** A thing, with its name. */
    public static final class Thing {
        public final int[] rect;
        public final String name;
        /** 0 to 1. */
        public final double confidence;

        Thing(int[] rect, String name, double confidence) {
            this.rect = rect;
            this.name = name;
            this.confidence = confidence;
        }
    }

    /** Whether anything was found. */
    public final boolean found;
    /** Faces, of {@link CameraMode#FACE_DETECTION}. */
    public final List<int[]> rects;
    /** The name of the face, of {@link CameraMode#FACE_RECOGNITION}; null if there is none. Its place is the first of {@link #rects}. */
    public final String subject;
    /** The distance to the face that was taught: lower is closer. */
    public final double distance;
    /** People, each as its points of x, y and score, of {@link CameraMode#POSE_DETECTION}. */
    public final List<double[][]> poses;
    /** Things, of {@link CameraMode#OBJECT_DETECTION}. */
    public final List<Thing> things;
    /** The node's time for the image, in ms. */
    public final double serverMs;
    /** From the image's leaving to its answer, in ms. */
    public final double fullProcessMs;

    private Result(JSONObject json, double fullProcessMs) throws JSONException {
        this.fullProcessMs = fullProcessMs;
        // The server says "true" and "false" as text, and numbers too.
        found = json.getString("success").equals("true");
        serverMs = json.optDouble("server_processing_time", 0);
        List<int[]> rects = new ArrayList<>();
        JSONArray all = json.optJSONArray("rects");
        for (int at = 0; all != null && at < all.length(); at++) {
            rects.add(rectOf(all.getJSONArray(at)));
        }
        if (json.optJSONArray("rect") != null) {
            rects.add(rectOf(json.getJSONArray("rect")));
        }
        this.rects = Collections.unmodifiableList(rects);
        subject = json.has("subject") ? json.getString("subject") : null;
        distance = json.optDouble("confidence", 0);
        poses = Collections.unmodifiableList(posesOf(json.optJSONArray("poses")));
        things = Collections.unmodifiableList(thingsOf(json.optJSONArray("objects")));
    }

    /**
     * Reads an answer.
     *
     * @throws VisionException it is an error of the server's, or no answer at all
     */
    static Result of(String text, double fullProcessMs) throws VisionException {
        try {
            JSONObject json = new JSONObject(text);
            if (json.has("error")) {
                throw new VisionException(messageOf(json), false);
            }
            return new Result(json, fullProcessMs);
        } catch (JSONException error) {
            throw new VisionException("the server sent what is no answer: " + (text.length() > 80 ? text.substring(0, 80) : text), false);
        }
    }

    /** The text of an error, of the paper's server or of the other paths of a node. */
    static String messageOf(JSONObject json) {
        JSONObject error = json.optJSONObject("error");
        return error == null ? json.optString("error") : error.optString("message");
    }

    private static int[] rectOf(JSONArray rect) throws JSONException {
        return new int[] {rect.getInt(0), rect.getInt(1), rect.getInt(2), rect.getInt(3)};
    }

    private static List<double[][]> posesOf(JSONArray all) throws JSONException {
        List<double[][]> poses = new ArrayList<>();
        for (int at = 0; all != null && at < all.length(); at++) {
            JSONArray points = all.getJSONArray(at);
            double[][] pose = new double[points.length()][];
            for (int point = 0; point < pose.length; point++) {
                JSONArray place = points.getJSONArray(point);
                pose[point] = new double[] {place.getDouble(0), place.getDouble(1), place.getDouble(2)};
            }
            poses.add(pose);
        }
        return poses;
    }

    private static List<Thing> thingsOf(JSONArray all) throws JSONException {
        List<Thing> things = new ArrayList<>();
        for (int at = 0; all != null && at < all.length(); at++) {
            JSONObject thing = all.getJSONObject(at);
            things.add(new Thing(rectOf(thing.getJSONArray("rect")), thing.getString("class"), thing.getDouble("confidence")));
        }
        return things;
    }
}
