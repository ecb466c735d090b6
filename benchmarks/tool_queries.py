"""What an LLM would ask a tool search, and the tools that would do: `(query, names)`.

1. Any one of the names is an answer; where several tools do the same, all of them are named.
2. `QUERIES` were written from the tools' names and first lines before any ranking was run, and
   nothing is tuned on them. Weights are chosen on `TUNING` alone.
3. A name that several servers use has a number behind it, from its second tool on (`unique`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Query = tuple[str, tuple[str, ...]]

QUERIES: tuple[Query, ...] = (
    ("current share price of Apple", ("get_current_stock_price", "get_ticker_info")),
    ("dividend history for a stock", ("get_dividends",)),
    ("download counts of an npm package over time", ("npmTrends",)),
    ("does this npm package have security vulnerabilities", ("npmVulnerabilities",)),
    ("how big is the bundle of a javascript library", ("npmSize",)),
    ("find a replacement for a deprecated package", ("npmAlternatives",)),
    ("icon for a shopping cart", ("search_icons",)),
    ("win rate and counters of a League of Legends champion", ("lol-champion-analysis",)),
    ("upcoming esports matches", ("esports-lol-schedules",)),
    ("Valorant ranking of the best players in Europe", ("valorant-leaderboard",)),
    ("extract text from a PDF file", ("read_pdf",)),
    ("plan meals for a week given allergies", ("mcp_howtocook_recommendMeals",)),
    ("推荐今天吃什么", ("mcp_howtocook_whatToEat", "mcp_howtocook_recommendMeals")),
    ("clinical trials recruiting for melanoma", ("trial_searcher",)),
    ("where is a clinical trial carried out, contact details", ("trial_locations_getter",)),
    ("predict the effect of a DNA variant on gene regulation", ("alphagenome_predictor",)),
    ("search pubmed for articles about a gene", ("article_searcher",)),
    ("search the web", ("duckduckgo_web_search", "bing_search")),
    ("describe what is in a picture on my disk", ("extract_image_from_file",)),
    ("知乎热榜", ("get-zhihu-trending",)),
    ("trending videos on bilibili", ("get-bilibili-rank",)),
    ("latitude and longitude of a street address", ("geocode_address",)),
    ("driving route between two places", ("get_route_directions",)),
    ("charging stations for electric cars nearby", ("find_ev_charging_stations",)),
    ("halfway point for several people to meet", ("suggest_meeting_point",)),
    ("schools close to this house", ("find_schools_nearby",)),
    ("八字", ("getBaziDetail", "getSolarTimes")),
    ("draw a pie chart", ("generate_pie_chart",)),
    ("show the flow between stages as a sankey diagram", ("generate_sankey_chart",)),
    ("word cloud from a text", ("generate_word_cloud_chart",)),
    ("org chart of a company", ("generate_organization_chart",)),
    ("cause and effect diagram", ("generate_fishbone_diagram",)),
    ("look up an encyclopedia article", ("search_wikipedia", "get_article", "get_summary")),
    ("links going out of a wikipedia page", ("get_links",)),
    ("remove a slide from a PowerPoint", ("delete_slide",)),
    ("convert SVG to PNG", ("convert_svg_to_png",)),
    ("what time is it in Tokyo", ("get_current_time",)),
    ("P/E ratio of a Korean stock", ("get_stock_fundamental",)),
    ("check a mermaid diagram", ("validateMermaid",)),
    ("take a screenshot of a website", ("playwright_screenshot", "puppeteer_screenshot")),
    ("type text into a form field in the browser", ("playwright_fill", "puppeteer_fill")),
    ("run javascript on the page", ("playwright_evaluate", "puppeteer_evaluate")),
    ("send a POST request to an API", ("playwright_post",)),
    ("read messages from the browser console", ("playwright_console_logs",)),
    ("fear and greed index for bitcoin", ("get_crypto_fear_greed_index",)),
    ("option chain with calls and puts", ("get_options",)),
    ("trades made by company insiders", ("get_insider_trades",)),
    ("leetcode problem of the day", ("get-daily-challenge",)),
    ("subtitles of a YouTube video", ("get_transcript",)),
    ("government open datasets", ("package_search",)),
    ("apartments to rent for a holiday in Paris", ("airbnb_search",)),
    ("store facts about a person in the knowledge graph", ("add_observations", "create_entities")),
    ("top stories on Hacker News", ("getStories",)),
    ("set slide transition effects", ("manage_slide_transitions",)),
    ("evaluate a math expression", ("calculate",)),
    ("price of Ethereum right now", ("get-crypto-price", "get_asset_price")),
    ("weather forecast for Berlin", ("get_weather", "get_weather_by_city")),
    ("documentation of a programming library", ("get-library-docs", "resolve-library-id")),
    ("mark a task as finished", ("mark_task_done",)),
    ("list pages in a website's sitemap", ("get_sitemap_pages",)),
    ("commit my changes to the repository", ("git_commit",)),
    ("switch to another branch", ("git_checkout",)),
    ("what changed but is not staged", ("git_diff_unstaged",)),
    ("password protect a Word file", ("protect_document",)),
    ("insert a footnote", ("add_footnote_to_document",)),
    ("random number between 1 and 100", ("random_int", "secure_random_int")),
    ("logs of a docker container", ("get-logs",)),
    ("从北京到上海的火车票", ("get-tickets", "get-interline-tickets")),
    ("kill a running process", ("kill_process", "force_terminate")),
    ("search for text inside source files", ("search_code",)),
    ("rename a file", ("move_file", "move_file_2")),
    ("folder structure as a tree", ("directory_tree",)),
    ("exchange rate from dollars to Norwegian krone", ("exchange_rate",)),
    ("download an arXiv paper", ("download_paper",)),
    ("legal moves in the chess position", ("get_valid_moves",)),
    ("who owns a domain name", ("whois_domain",)),
    ("write values into an Excel sheet", ("excel_write_to_sheet",)),
    ("beats per minute of a song", ("tempo",)),
)

TUNING: tuple[Query, ...] = (
    (
        "historical prices of a stock over a date range",
        ("get_stock_price_date_range", "get_historical_stock_prices", "get_price_history"),
    ),
    ("who maintains this npm package", ("npmMaintainers",)),
    ("license compatibility of dependencies", ("npmLicenseCompatibility",)),
    ("tft item recipes", ("tft-meta-item-combinations",)),
    ("match history of a valorant player", ("valorant-player-match-history",)),
    ("游戏王卡牌搜索", ("search_cards",)),
    ("bbc news headlines", ("get-bbc-news",)),
    ("address from GPS coordinates", ("reverse_geocode",)),
    ("places to park a car", ("find_parking_facilities",)),
    ("histogram of values", ("generate_histogram_chart",)),
    ("mind map from markdown", ("convert_markdown_to_mindmap", "generate_mind_map")),
    ("summarize one section of a wikipedia article", ("summarize_article_section",)),
    ("upload a file in the browser", ("playwright_upload_file",)),
    ("press a key on the page", ("playwright_press_key",)),
    ("which institutions hold a company's shares", ("get_institutional_holders",)),
    ("delete entities from the graph", ("delete_entities",)),
    (
        "comments on a hacker news story",
        ("getComments", "getStoryWithComments", "getCommentTree"),
    ),
    ("create slides from a template", ("create_slide_from_template",)),
    ("go back to the previous page", ("playwright_go_back",)),
    ("create a git branch", ("git_create_branch",)),
    ("replace a word everywhere in a document", ("search_and_replace",)),
    ("shuffle a list", ("random_shuffle",)),
    ("save a note", ("write_note",)),
    ("start a docker compose stack", ("deploy-compose",)),
    ("fetch a page as markdown", ("fetch_markdown",)),
    ("picture of the chess board", ("get_board_visualization",)),
    ("车站代码", ("get-station-code-by-names", "get-stations-code-in-city")),
)


def unique(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return recorded definitions as a conversation takes them: no name twice, all of `mcp`."""
    seen: Counter[str] = Counter()
    found = []
    for tool in tools:
        function = dict(tool["function"])
        name = function["name"]
        seen[name] += 1
        if seen[name] > 1:
            function["name"] = f"{name}_{seen[name]}"
        found.append({"type": "function", "category": "mcp", "function": function})
    return found
