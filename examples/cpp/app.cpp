// Label pictures with a device's model, with the C++ API of ONNX Runtime:
//
//   g++ -std=c++17 -O2 app.cpp -I HEADERS LIBRARY -Wl,-rpath,FOLDER_OF_LIBRARY -o app
//   ./app STATE PICTURE.ppm...
//
// HEADERS is the folder with onnxruntime_cxx_api.h, LIBRARY is libonnxruntime.so or
// libonnxruntime.so.1.x.y, STATE the agent's state folder. README.md says where to find them.
// Pictures are binary PPM (P6), as cameras' tools and `ffmpeg -i … x.ppm` write them.

#include <onnxruntime_cxx_api.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <string>

#include "pixels.h"

Picture read_ppm(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string magic;
  int most = 0;
  Picture picture{};
  file >> magic >> picture.width >> picture.height >> most;
  file.get();
  const int64_t area = int64_t{picture.width} * picture.height;
  if (!file || magic != "P6" || most != 255 || picture.width < 1 || picture.height < 1 || area > 1 << 28)
    throw std::runtime_error(path + ": not a readable picture (PPM, P6, 8 bits)");
  picture.rgb.resize(3 * area);
  if (!file.read(reinterpret_cast<char*>(picture.rgb.data()), picture.rgb.size()))
    throw std::runtime_error(path + ": the file ends before the picture does");
  return picture;
}

// The texts of a JSON list of texts, such as the metadata's `labels`.
std::vector<std::string> texts(const std::string& json) {
  std::vector<std::string> found;
  bool inside = false;
  for (size_t i = 0; i < json.size(); i++) {
    if (json[i] == '"') {
      inside = !inside;
      if (inside) found.emplace_back();
    } else if (inside) {
      if (json[i] == '\\') i++;
      found.back() += json[i];
    }
  }
  return found;
}

class Model {
 public:
  explicit Model(const std::filesystem::path& state)
      : session_(environment_, path(state).c_str(), options()) {
    Ort::AllocatorWithDefaultOptions allocator;
    const auto metadata = session_.GetModelMetadata();
    labels_ = texts(metadata.LookupCustomMetadataMapAllocated("labels", allocator).get());
    const auto type = session_.GetInputTypeInfo(0);
    const auto info = type.GetTensorTypeAndShapeInfo();
    const auto shape = info.GetShape();  // the batch first
    if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 || shape.size() != 4)
      throw std::runtime_error("this model reads no pictures");
    shape_ = {int(shape[1]), int(shape[2]), int(shape[3])};
  }

  // The best label and its probability.
  std::pair<std::string, float> ask(const Picture& picture) {
    auto image = pixels(picture, shape_);
    const int64_t shape[] = {1, shape_.channels, shape_.height, shape_.width};
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeCPU);
    auto input = Ort::Value::CreateTensor<uint8_t>(memory, image.data(), image.size(), shape, 4);
    const char *in = "image", *out = "probabilities";
    auto outputs = session_.Run(Ort::RunOptions{}, &in, &input, 1, &out, 1);
    const float* probabilities = outputs[0].GetTensorData<float>();
    const auto best = std::max_element(probabilities, probabilities + labels_.size());
    return {labels_.at(best - probabilities), *best};
  }

 private:
  // The file that the manifest wants apps to load: float32, or a variant such as int8.
  // The link is followed once: the agent may replace it at any moment.
  static std::string path(const std::filesystem::path& state) {
    const auto folder = std::filesystem::canonical(state / "models" / "current");
    std::ifstream file(folder / "manifest.json");
    const std::string manifest{std::istreambuf_iterator<char>(file), {}};
    std::smatch use;
    if (!std::regex_search(manifest, use, std::regex("\"use\"\\s*:\\s*\"([a-z0-9]+)\"")))
      throw std::runtime_error((folder / "manifest.json").string() + ": not a model's manifest");
    return (folder / (use[1] == "fp32" ? "model.onnx" : "model." + use.str(1) + ".onnx")).string();
  }

  static Ort::SessionOptions options() {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);  // best for small networks
    return options;
  }

  Ort::Env environment_{ORT_LOGGING_LEVEL_WARNING, "app"};
  Ort::Session session_;
  std::vector<std::string> labels_;
  Shape shape_{};
};

int main(int count, char** words) try {
  if (count < 3) throw std::runtime_error("usage: app STATE PICTURE.ppm...");
  Model model(words[1]);
  for (int i = 2; i < count; i++) {
    const auto [label, probability] = model.ask(read_ppm(words[i]));
    std::printf("%s: %s %.4f\n", words[i], label.c_str(), probability);
  }
} catch (const std::exception& error) {
  std::cerr << "app: " << error.what() << "\n";
  return 2;
}
