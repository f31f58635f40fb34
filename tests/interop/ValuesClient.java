import com.rabbitmq.stream.Codec;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.Message;
import com.rabbitmq.stream.MessageBuilder;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.codec.QpidProtonCodec;
import com.rabbitmq.stream.codec.SimpleCodec;
import java.lang.reflect.Array;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.qpid.proton.amqp.Binary;
import org.apache.qpid.proton.amqp.Decimal128;
import org.apache.qpid.proton.amqp.Decimal32;
import org.apache.qpid.proton.amqp.Decimal64;
import org.apache.qpid.proton.amqp.DescribedType;
import org.apache.qpid.proton.amqp.Symbol;
import org.apache.qpid.proton.amqp.UnknownDescribedType;
import org.apache.qpid.proton.amqp.UnsignedByte;
import org.apache.qpid.proton.amqp.UnsignedInteger;
import org.apache.qpid.proton.amqp.UnsignedLong;
import org.apache.qpid.proton.amqp.UnsignedShort;
import org.apache.qpid.proton.amqp.messaging.AmqpSequence;
import org.apache.qpid.proton.amqp.messaging.AmqpValue;
import org.apache.qpid.proton.amqp.messaging.Data;
import org.apache.qpid.proton.amqp.messaging.DeliveryAnnotations;
import org.apache.qpid.proton.amqp.messaging.Footer;
import org.apache.qpid.proton.amqp.messaging.Section;

/**
 * "publish PORT STREAM" publishes a message with every type of property that the client's builder supports, in each of the
 * kinds of message id; "bodies PORT STREAM" one with every kind of body; "consume PORT STREAM COUNT" prints what the client makes of each message: lines of offset, name,
 * class and JSON, the latter in base64.
 */
public class ValuesClient {
  static final int IDS = 4;

  public static void main(String[] args) throws Exception {
    int port = Integer.parseInt(args[1]);
    Codec codec = args[0].equals("bodies") ? new SimpleCodec() : new QpidProtonCodec();
    try (Environment environment = Environment.builder().host("127.0.0.1").port(port).codec(codec).build()) {
      if (args[0].equals("consume")) {
        consume(environment, args[2], Integer.parseInt(args[3]));
      } else if (args[0].equals("bodies")) {
        publishBodies(environment, args[2]);
      } else {
        publish(environment, args[2]);
      }
    }
  }

  static void publish(Environment environment, String stream) throws Exception {
    CountDownLatch confirmed = new CountDownLatch(IDS);
    try (Producer producer = environment.producerBuilder().stream(stream).build()) {
      for (int number = 0; number < IDS; number++) {
        producer.send(message(producer.messageBuilder(), number), status -> confirmed.countDown());
      }
      confirmed.await(20, TimeUnit.SECONDS);
    }
    System.out.println(IDS - confirmed.getCount());
  }

  /** Bodies that the builder lacks, in the encoding of the library that the client encodes and decodes with. */
  static void publishBodies(Environment environment, String stream) throws Exception {
    List<Section> bodies = bodies();
    CountDownLatch confirmed = new CountDownLatch(bodies.size());
    try (Producer producer = environment.producerBuilder().stream(stream).build()) {
      for (Section body : bodies) {
        producer.send(producer.messageBuilder().addData(encoded(body)).build(), status -> confirmed.countDown());
      }
      confirmed.await(20, TimeUnit.SECONDS);
    }
    System.out.println(bodies.size() - confirmed.getCount());
  }

  static byte[] encoded(Section body) {
    org.apache.qpid.proton.message.Message message = org.apache.qpid.proton.message.Message.Factory.create();
    message.setBody(body);
    message.setMessageId("of a body");
    message.setDurable(true);
    message.setPriority((short) 7);
    message.setTtl(60_000);
    message.setDeliveryAnnotations(new DeliveryAnnotations(Map.of(Symbol.valueOf("x-delivery"), 1)));
    message.setFooter(new Footer(Map.of(Symbol.valueOf("x-footer"), "end")));
    byte[] buffer = new byte[10_000];
    return Arrays.copyOf(buffer, message.encode(buffer, 0, buffer.length));
  }

  static List<Section> bodies() {
    List<Object> values = List.of(
        true, (byte) -5, (short) -300, 5, -70000, 5L, Long.MIN_VALUE, UnsignedByte.valueOf((byte) -1),
        UnsignedShort.valueOf((short) -1), UnsignedInteger.valueOf(0), UnsignedInteger.valueOf(-1),
        UnsignedLong.valueOf(0), UnsignedLong.valueOf(-1), 1.1f, 0.1, new Decimal32(7), new Decimal64(7),
        new Decimal128(1, 7), 'ä', new Date(1_700_000_000_789L), new UUID(5, 6), new Binary(new byte[300]), "grün",
        "x".repeat(300), Symbol.valueOf("sym"), List.of(), Map.of(),
        Map.of("k", List.of(1, Map.of(Symbol.valueOf("s"), new Date(-1)))), new int[] {1, -300},
        new String[] {"a", "ä"}, new Symbol[] {Symbol.valueOf("s")}, new boolean[] {true, false}, new double[] {0.5},
        new UnknownDescribedType(Symbol.valueOf("x:y"), List.of("v", new UUID(1, 2))));
    List<Section> bodies = new ArrayList<>();
    values.forEach(value -> bodies.add(new AmqpValue(value)));
    Predicate<Object> fits = value -> !value.getClass().isArray() || value instanceof Object[];
    bodies.add(new AmqpSequence(values.stream().filter(fits).collect(Collectors.toList()))); // as far as it encodes them
    bodies.add(new AmqpSequence(List.of()));
    bodies.add(new Data(new Binary(new byte[0])));
    return bodies;
  }

  static Message message(MessageBuilder builder, int number) {
    byte[] raw = {(byte) 0xff, 0};
    MessageBuilder.PropertiesBuilder properties = builder.properties();
    switch (number) {
      case 0: properties.messageId("id").correlationId("other"); break;
      case 1: properties.messageId(Long.MAX_VALUE).correlationId(7L); break;
      case 2: properties.messageId(new UUID(1, 2)).correlationId(new UUID(3, 4)); break;
      default: properties.messageId(raw).correlationId(new byte[0]);
    }
    properties.userId(raw).to("to").subject("grün").replyTo("reply").contentType("text/plain").contentEncoding("gzip");
    properties.absoluteExpiryTime(1_800_000_000_123L).creationTime(1_700_000_000_456L).groupId("g");
    properties.groupSequence(4_000_000_000L).replyToGroupId("rg").messageBuilder();
    builder
        .applicationProperties()
        .entry("boolean", true).entry("byte", (byte) -5).entry("short", (short) -300).entry("int", -70000)
        .entry("long", Long.MIN_VALUE).entryUnsigned("ubyte", (byte) -1).entryUnsigned("ushort", (short) -1)
        .entryUnsigned("uint", -1).entryUnsigned("ulong", -1L).entry("float", 1.1f).entry("double", 0.1)
        .entry("char", 'ä')
        .entryTimestamp("timestamp", 1_700_000_000_789L).entry("uuid", new UUID(5, 6)).entry("binary", raw)
        .entry("string", "text\u0000").entrySymbol("symbol", "sym").messageBuilder();
    builder
        .messageAnnotations()
        .entry("boolean", false).entry("byte", (byte) 5).entry("short", (short) 300).entry("int", 70000)
        .entry("long", Long.MAX_VALUE).entryUnsigned("ubyte", (byte) 0).entryUnsigned("ushort", (short) 0)
        .entryUnsigned("uint", 0).entryUnsigned("ulong", 0L).entry("float", -0.0f).entry("double", 1e300)
        .entry("char", '\u20ac').entryTimestamp("timestamp", -1).entry("uuid", new UUID(7, 8)).entry("binary", raw)
        .entry("string", "").entrySymbol("symbol", "").entry("list", List.of(1, "two"))
        .entry("map", Map.of("k", 0.5)).entryArray("array", new Object[] {"a", "b"}).messageBuilder();
    return builder.addData(("body " + number).getBytes(StandardCharsets.UTF_8)).build();
  }

  static void consume(Environment environment, String stream, int count) throws Exception {
    CountDownLatch enough = new CountDownLatch(count);
    List<String> got = new ArrayList<>();
    environment
        .consumerBuilder()
        .stream(stream)
        .offset(OffsetSpecification.first())
        .messageHandler(
            (context, message) -> {
              synchronized (got) {
                describe(got, context.offset(), message);
              }
              enough.countDown();
            })
        .build();
    enough.await(20, TimeUnit.SECONDS);
    synchronized (got) {
      got.forEach(System.out::println);
    }
  }

  static void describe(List<String> got, long offset, Message message) {
    add(got, offset, "body", message.getBody() instanceof byte[] ? message.getBodyAsBinary() : message.getBody());
    if (message.getProperties() != null) {
      add(got, offset, "message_id", message.getProperties().getMessageId());
      add(got, offset, "correlation_id", message.getProperties().getCorrelationId());
      add(got, offset, "user_id", message.getProperties().getUserId());
      add(got, offset, "to", message.getProperties().getTo());
      add(got, offset, "subject", message.getProperties().getSubject());
      add(got, offset, "reply_to", message.getProperties().getReplyTo());
      add(got, offset, "content_type", message.getProperties().getContentType());
      add(got, offset, "content_encoding", message.getProperties().getContentEncoding());
      add(got, offset, "absolute_expiry_time", new Date(message.getProperties().getAbsoluteExpiryTime()));
      add(got, offset, "creation_time", new Date(message.getProperties().getCreationTime()));
      add(got, offset, "group_id", message.getProperties().getGroupId());
      add(got, offset, "group_sequence", message.getProperties().getGroupSequence());
      add(got, offset, "reply_to_group_id", message.getProperties().getReplyToGroupId());
    }
    addAll(got, offset, "application_properties.", message.getApplicationProperties());
    addAll(got, offset, "annotations.", message.getMessageAnnotations());
  }

  static void addAll(List<String> got, long offset, String prefix, Map<String, Object> found) {
    if (found != null) {
      found.forEach((name, value) -> add(got, offset, prefix + name, value));
    }
  }

  static void add(List<String> got, long offset, String name, Object value) {
    if (value instanceof AmqpValue) {
      value = ((AmqpValue) value).getValue();
    } else if (value instanceof Data) {
      value = ((Data) value).getValue();
    } else if (value instanceof AmqpSequence) {
      value = ((AmqpSequence) value).getValue();
    }
    if (value == null) {
      return;
    }
    String line = Base64.getEncoder().encodeToString(json(value, true).getBytes(StandardCharsets.UTF_8));
    got.add(offset + "\t" + name + "\t" + value.getClass().getSimpleName() + "\t" + line);
  }

  /** JSON, in which a value of a type that JSON lacks is an object with the name of the type. */
  static String json(Object value, boolean outermost) {
    if (value instanceof List) {
      return items(((List<?>) value).stream());
    } else if (value instanceof Map) {
      Stream<String> pairs = ((Map<?, ?>) value).entrySet().stream().map(one -> items(Stream.of(one.getKey(), one.getValue())));
      return "{\"$map\":[" + pairs.collect(Collectors.joining(",")) + "]}";
    } else if (value instanceof DescribedType) {
      DescribedType one = (DescribedType) value;
      return "{\"$described\":" + items(Stream.of(one.getDescriptor(), one.getDescribed())) + "}";
    } else if (value instanceof byte[] || value instanceof Binary) {
      return typed("binary", Base64.getEncoder().encodeToString(bytes(value)));
    } else if (value != null && value.getClass().isArray()) {
      String all = items(IntStream.range(0, Array.getLength(value)).mapToObj(at -> Array.get(value, at)));
      return outermost ? all : "{\"$array\":" + all + "}";
    }
    return scalar(value);
  }

  static String items(Stream<?> values) {
    return "[" + values.map(value -> json(value, false)).collect(Collectors.joining(",")) + "]";
  }

  static String scalar(Object value) {
    if (value == null || value instanceof Boolean || value instanceof Number && !(value instanceof Decimal32
        || value instanceof Decimal64 || value instanceof Decimal128)) {
      return String.valueOf(value);
    } else if (value instanceof Decimal32) {
      return typed("decimal32", String.format("0x%08x", ((Decimal32) value).getBits()));
    } else if (value instanceof Decimal64) {
      return typed("decimal64", String.format("0x%016x", ((Decimal64) value).getBits()));
    } else if (value instanceof Decimal128) {
      return typed("decimal128", String.format("0x%032x", new BigInteger(1, ((Decimal128) value).asBytes())));
    } else if (value instanceof Date) {
      return typed("timestamp", String.valueOf(((Date) value).getTime()));
    } else if (value instanceof Character || value instanceof UUID) {
      return typed(value instanceof UUID ? "uuid" : "char", String.valueOf(value));
    }
    return value.getClass().getSimpleName().equals("Symbol") ? typed("symbol", String.valueOf(value)) : quoted(value);
  }

  static byte[] bytes(Object value) {
    if (value instanceof byte[]) {
      return (byte[]) value;
    }
    Binary raw = (Binary) value;
    return Arrays.copyOfRange(raw.getArray(), raw.getArrayOffset(), raw.getArrayOffset() + raw.getLength());
  }

  static String typed(String type, String text) {
    return "{\"$" + type + "\":" + quoted(text) + "}";
  }

  static String quoted(Object text) {
    StringBuilder found = new StringBuilder("\"");
    for (char one : String.valueOf(text).toCharArray()) {
      found.append(one < ' ' || one == '"' || one == '\\' ? String.format("\\u%04x", (int) one) : String.valueOf(one));
    }
    return found.append('"').toString();
  }
}
