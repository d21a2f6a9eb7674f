// Fills its memory with what Java programs have: strings, maps, lists, byte arrays. Then waits.
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

class Heap {
    record Order(long id, String customer, double amount, int[] items) {}

    public static void main(String[] args) throws Exception {
        Random random = new Random(1);
        Map<String, Order> orders = new HashMap<>();
        List<byte[]> pages = new ArrayList<>();
        for (int i = 0; i < 500_000; i++) {
            String customer = "customer-" + random.nextInt(50_000);
            orders.put("order-" + i, new Order(i, customer, random.nextDouble() * 1000, new int[] {i, i % 7, i % 31}));
            if (i % 50 == 0) {
                pages.add(("{\"order\": " + i + ", \"name\": \"" + customer + "\"}").repeat(20).getBytes(StandardCharsets.UTF_8));
            }
        }
        System.out.println("ready");
        System.out.flush();
        System.in.read();
        System.out.println(orders.size() + pages.size());
    }
}
