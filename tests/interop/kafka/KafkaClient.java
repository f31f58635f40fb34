import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

/** Kafka's own clients behind a pipe: one command per line of standard input, one answer per line of standard output,
 *  both JSON. An answer is {"ok": …} or {"error": "…"}. Ends with its standard input. */
public class KafkaClient {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration PATIENCE = Duration.ofSeconds(120);
    static String address;

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", run(JSON.readTree(line)));
            } catch (Exception error) {
                answer.put("error", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    static JsonNode run(JsonNode command) throws Exception {
        switch (command.get("do").asText()) {
            case "create": return create(command);
            case "consume": return consume(command);
            case "produce": return produce(command);
            case "commit": return commit(command);
            case "groups": return groups();
            case "delete_records": return deleteRecords(command);
            case "delete_groups": return deleteGroups(command);
            default: throw new IllegalArgumentException("unknown command");
        }
    }

    static Properties properties(String... pairs) {
        var found = new Properties();
        found.put("bootstrap.servers", address);
        for (int n = 0; n < pairs.length; n += 2) found.put(pairs[n], pairs[n + 1]);
        return found;
    }

    static JsonNode create(JsonNode command) throws Exception {
        try (var admin = Admin.create(properties())) {
            var topics = new ArrayList<NewTopic>();
            for (JsonNode one : command.get("topics")) {
                var config = new HashMap<String, String>();
                one.get("config").fields().forEachRemaining(pair -> config.put(pair.getKey(), pair.getValue().asText()));
                topics.add(new NewTopic(one.get("name").asText(), one.get("partitions").asInt(), (short) 1).configs(config));
            }
            admin.createTopics(topics).all().get();
            return JSON.getNodeFactory().numberNode(topics.size());
        }
    }

    static JsonNode consume(JsonNode command) {
        var partition = new TopicPartition(command.get("topic").asText(), command.get("partition").asInt());
        var settings = properties("isolation.level", command.get("isolation").asText(), "auto.offset.reset", "none");
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            answer.put("beginning", consumer.position(partition)).put("end", end);
            long until = System.nanoTime() + PATIENCE.toNanos();
            while (consumer.position(partition) < end) {
                if (System.nanoTime() > until) throw new IllegalStateException("no progress at " + consumer.position(partition));
                for (var record : consumer.poll(Duration.ofMillis(500)))
                    if (record.offset() < end) records.add(shown(record));
            }
        }
        return answer;
    }

    static ObjectNode shown(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode row = JSON.createObjectNode();
        row.put("offset", record.offset()).put("timestamp", record.timestamp());
        row.put("timestamp_type", record.timestampType().toString());
        row.put("key", record.key()).put("value", record.value());
        ArrayNode headers = row.putArray("headers");
        for (Header header : record.headers()) headers.addArray().add(header.key()).add(header.value());
        return row;
    }

    /** Sends each record to its topic; "end" is "commit" or "abort" for a transaction, and null otherwise. A transaction
     *  may commit the "offsets" of a group. */
    @SuppressWarnings("removal")
    static JsonNode produce(JsonNode command) throws Exception {
        String end = command.get("end").asText(null);
        var settings = properties("acks", "all", "delivery.timeout.ms", "120000");
        settings.put("enable.idempotence", command.get("idempotent").asText());
        settings.put("compression.type", command.get("compression").asText());
        if (end != null) settings.put("transactional.id", command.get("name").asText());
        ArrayNode offsets = JSON.createArrayNode();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (end != null) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            var sent = new ArrayList<Future<RecordMetadata>>();
            for (JsonNode one : command.get("records")) sent.add(producer.send(record(one)));
            producer.flush();
            for (var one : sent) offsets.add(one.get().offset());
            var committed = offsets(command);
            if (!committed.isEmpty())
                producer.sendOffsetsToTransaction(
                    committed, new ConsumerGroupMetadata(command.get("group").asText(), -1, "", Optional.empty()));
            if ("commit".equals(end)) producer.commitTransaction();
            if ("abort".equals(end)) producer.abortTransaction();
        }
        return offsets;
    }

    static ProducerRecord<byte[], byte[]> record(JsonNode one) throws Exception {
        var headers = new ArrayList<Header>();
        for (JsonNode pair : one.get("headers")) headers.add(new RecordHeader(pair.get(0).asText(), bytes(pair.get(1))));
        return new ProducerRecord<>(
            one.get("topic").asText(), one.get("partition").asInt(), one.get("timestamp").asLong(),
            bytes(one.get("key")), bytes(one.get("value")), headers);
    }

    static byte[] bytes(JsonNode text) throws Exception {
        return text.isNull() ? null : text.binaryValue();
    }

    /** A consumer of the group joins, gets its partitions, and commits the offsets. */
    static JsonNode commit(JsonNode command) {
        var settings = properties("group.id", command.get("group").asText(), "enable.auto.commit", "false");
        settings.put("group.protocol", command.get("protocol").asText());
        var offsets = offsets(command);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(offsets.keySet().stream().map(TopicPartition::topic).distinct().toList());
            long until = System.nanoTime() + PATIENCE.toNanos();
            while (!consumer.assignment().containsAll(offsets.keySet())) {
                if (System.nanoTime() > until) throw new IllegalStateException("the group assigns no partitions");
                consumer.poll(Duration.ofMillis(100));
            }
            consumer.commitSync(offsets);
        }
        return JSON.getNodeFactory().numberNode(offsets.size());
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode command) {
        var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
        for (JsonNode one : command.get("offsets")) {
            var partition = new TopicPartition(one.get("topic").asText(), one.get("partition").asInt());
            offsets.put(partition, new OffsetAndMetadata(one.get("offset").asLong(), one.get("metadata").asText()));
        }
        return offsets;
    }

    static JsonNode groups() throws Exception {
        ArrayNode answer = JSON.createArrayNode();
        try (var admin = Admin.create(properties())) {
            for (var group : admin.listGroups().all().get()) {
                var offsets = admin.listConsumerGroupOffsets(group.groupId()).partitionsToOffsetAndMetadata().get();
                offsets.forEach((partition, found) -> {
                    ObjectNode row = answer.addObject().put("group", group.groupId()).put("topic", partition.topic());
                    row.put("partition", partition.partition()).put("offset", found.offset());
                    row.put("metadata", found.metadata()).put("leader_epoch", found.leaderEpoch().orElse(-1));
                });
            }
        }
        return answer;
    }

    static JsonNode deleteRecords(JsonNode command) throws Exception {
        var partition = new TopicPartition(command.get("topic").asText(), 0);
        try (var admin = Admin.create(properties())) {
            var before = RecordsToDelete.beforeOffset(command.get("offset").asLong());
            admin.deleteRecords(Map.of(partition, before)).all().get();
        }
        return JSON.getNodeFactory().nullNode();
    }

    static JsonNode deleteGroups(JsonNode command) throws Exception {
        try (var admin = Admin.create(properties())) {
            for (JsonNode one : command.get("groups")) admin.deleteConsumerGroups(List.of(one.asText())).all().get();
            for (JsonNode one : command.get("offsets")) {
                var partition = new TopicPartition(one.get("topic").asText(), one.get("partition").asInt());
                admin.deleteConsumerGroupOffsets(one.get("group").asText(), Set.of(partition)).all().get();
            }
        }
        return JSON.getNodeFactory().nullNode();
    }
}
