package duramen.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32;

import com.fasterxml.jackson.databind.JsonNode;

/**
 * What the planner says of a split that this JVM can read itself. {@code counted}: count, smallest and largest offset of
 * records that are in no piece.
 */
record NativeSplit(String[] columns, String[] aggregates, JsonNode counted, List<Piece> pieces) {
    static NativeSplit of(String json) throws IOException {
        JsonNode tree = PythonProcess.JSON.readTree(json);
        List<Piece> pieces = new ArrayList<>();
        for (JsonNode one : tree.get("pieces")) {
            JsonNode identity = one.get("identity");
            pieces.add(new Piece(
                one.get("path").asText(), one.get("piece").binaryValue(), one.get("topic").asText(),
                one.get("partition").asInt(), one.get("segment").asText(),
                identity.path(0).asText(), identity.path(1).asLong(), identity.path(2).asLong()));
        }
        return new NativeSplit(
            texts(tree.get("columns")), texts(tree.get("aggregates")), tree.get("counted"), pieces);
    }

    private static String[] texts(JsonNode array) {
        String[] found = new String[array.size()];
        for (int i = 0; i < found.length; i++) found[i] = array.get(i).asText();
        return found;
    }

    /** {@code packed} is the kernel's. The other file says which log it is; its name is empty where none does. */
    record Piece(
        String path, byte[] packed, String topic, int partition, String segment, String identityPath,
        long identityBytes, long identityCrc32) {
        /** The piece, opened, or null where Python must read it. */
        NativePiece open() {
            NativePiece opened = NativePiece.of(path, packed);
            if (opened == null || isSameLog()) return opened;
            opened.close();
            return null;
        }

        /** Asked after the file was opened: it belongs to the log that is compared. */
        private boolean isSameLog() {
            if (identityPath.isEmpty()) return true;
            try {
                Path file = Path.of(identityPath);
                if (Files.size(file) != identityBytes) return false;
                CRC32 sum = new CRC32();
                sum.update(Files.readAllBytes(file));
                return sum.getValue() == identityCrc32;
            } catch (IOException | RuntimeException gone) {
                return false;
            }
        }
    }
}
